"""The blocking client of services: commands and reads, from any thread of any process."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from chancy.errors import ChancyError, InvalidArguments
from chancy.plugins.redis.services.base import Listing, ServiceReport, ServiceState
from chancy.plugins.redis.services.service_link import ServiceLink
from chancy.plugins.redis.services.values import (
    as_json,
    check_id,
    check_name,
    data_of,
    readable,
    text_of,
)
from chancy.plugins.redis.transport.redis_client import Reply
from chancy.text import shown

#: Attempts to set data that others change at the same time.
_TRIES = 20


class ServiceRuns(ChancyError):
    """A service was started that already runs: each id has one instance."""


class NoService(ChancyError):
    """There is no service with this id."""


class ServiceStore:
    """Commands and reads of services, thread-safe and blocking.

    Each method raises `BrokerUnavailable` when Redis is unavailable. The outcome is then unknown,
    and you can repeat every method; `start` only with an id, because without one it starts another
    service.
    """

    def __init__(self, link: ServiceLink) -> None:
        self.link = link

    def start(self, name: str, /, id: str | None = None, cleanup: bool = True, **data: Any) -> str:
        """Queue a service for a worker; return its id.

        A queued service gets the new data and keeps its position; a stopped or ended service starts
        again.

        :param name: the name of its class. Only the worker that claims it can check the name.
        :param id: generated unless given.
        :param cleanup: whether it is removed after its end.
        :raises ServiceRuns: it runs; `reload` or `restart` it.
        :raises InvalidArguments: the data is not valid JSON.
        """
        return self.begin(name, data, id=id, cleanup=cleanup)

    def begin(
        self,
        name: str,
        data: Mapping[str, Any],
        *,
        id: str | None = None,
        cleanup: bool = True,
    ) -> str:
        """`start` with the data as a mapping, which may have the keys ``id`` and ``cleanup``."""
        chosen = str(uuid.uuid4()) if id is None else check_id(id)
        text = as_json(dict(data), f"the data of the service {name!r}")
        kept = "true" if cleanup else "false"
        if self.link.run("start", chosen, check_name(name), text, kept) == b"RUNNING":
            raise ServiceRuns(
                f"the service {chosen} already runs: reload or restart it, or use another id"
            )
        return chosen

    def stop(self, id: str) -> ServiceState:
        """Request that a service stops; it can be restarted. Return its previous state.

        A running service is notified at once, or as soon as its worker reaches Redis.

        :raises NoService: there is no such service.
        """
        return self._request(id, "stop")

    def reload(self, id: str) -> ServiceState:
        """Request that its worker stops it and starts it with its current data.

        A service that does not run reads its data when it starts.

        :raises NoService: there is no such service.
        """
        return self._request(id, "reload")

    def restart(self, id: str) -> ServiceState:
        """Run a service again, in any worker, after stopping it if it runs; return its old state.

        :raises NoService: there is no such service.
        """
        _, state = self._restart(id)
        return state

    def restart_if(self, id: str, states: Iterable[ServiceState | str]) -> bool:
        """`restart` a service if it is in one of these states; return whether it was.

        :raises NoService: there is no such service.
        :raises InvalidArguments: a state is invalid.
        """
        names = [_parsed_state(state).value for state in states]
        return self._restart(id, *names)[0] if names else False

    def remove(self, id: str) -> ServiceState | None:
        """Remove a service and its data; a running service is stopped by its worker first.

        Returns its previous state, None if there is no such service.
        """
        found = self.link.run("ask", check_id(id), "remove")
        return None if found is None else _state(found)

    def get(self, id: str) -> ServiceReport | None:
        """Return the stored state of a service, None if there is no such service."""
        fields = self.fields(id)
        return report_of(id, fields) if fields else None

    def set(self, id: str, /, **data: Any) -> None:
        """Update some keys of its data; a running service gets them after a `reload`.

        :raises NoService: there is no such service.
        :raises InvalidArguments: the data is not valid JSON, or others changed it in 20 attempts.
        """
        for _ in range(_TRIES):
            old = self.fields(id, ["data"]).get("data", "")
            new = as_json(data_of(old) | data, f"the data of the service {id}")
            done = self.link.run("swap", check_id(id), old, new)
            if done is None:
                raise _missing(id)
            if done:
                return
        raise InvalidArguments(
            f"the data of the service {id} was changed by others in {_TRIES} attempts: try again"
        )

    def list(self) -> Listing:
        """Return the ids of all services."""
        keys = self.link.keys
        return Listing(
            new=_texts(reversed(self.link.command("LRANGE", keys.waiting, 0, -1))),
            active=sorted(_texts(self.link.command("SMEMBERS", keys.known))),
            ended=_texts(reversed(self.link.command("LRANGE", keys.ended, 0, -1))),
        )

    # The stored hash

    def fields(self, id: str, names: Iterable[str] | None = None) -> dict[str, str]:
        """Return fields of its hash, all unless names are given; missing fields are omitted."""
        key = self.link.keys.of(check_id(id))
        if names is None:
            found = self.link.command("HGETALL", key)
            return {text_of(name): text_of(value) for name, value in found.items()}
        asked = list(names)
        values = self.link.command("HMGET", key, *asked) if asked else []
        return {
            name: text_of(value)
            for name, value in zip(asked, values, strict=True)
            if value is not None
        }

    def write(self, id: str, fields: Mapping[str, object]) -> None:
        """Set fields of its hash; values other than strings are written as JSON."""
        flat: list[str] = []
        for name, value in fields.items():
            flat += [name, value if isinstance(value, str) else as_json(value, f"the field {name}")]
        if flat:
            self.link.command("HSET", self.link.keys.of(check_id(id)), *flat)

    def _request(self, id: str, wanted: str) -> ServiceState:
        found = self.link.run("ask", check_id(id), wanted)
        if found is None:
            raise _missing(id)
        return _state(found)

    def _restart(self, id: str, *states: str) -> tuple[bool, ServiceState]:
        found = self.link.run("restart", check_id(id), *states)
        if found is None:
            raise _missing(id)
        return bool(found[0]), _state(found[1])


def report_of(id: str, fields: Mapping[str, str]) -> ServiceReport:
    """Return the report of a service from its hash."""
    output = fields.get("output")
    last = fields.get("last_update", "")
    try:
        data = data_of(fields.get("data", ""))
    except InvalidArguments:
        data = {}
    return ServiceReport(
        id=id,
        name=fields.get("task", ""),
        state=_state(fields.get("state", "WAIT")),
        data=data,
        output=None if output is None else readable(output),
        last_update=int(float(last)) if last.replace(".", "", 1).isdigit() else None,
        owner=fields.get("owner"),
        local=fields.get("local") == "true",
        cleanup=fields.get("cleanup") != "false",
        wanted=fields.get("wanted"),
    )


def _parsed_state(state: ServiceState | str) -> ServiceState:
    try:
        return ServiceState(state)
    except ValueError:
        raise InvalidArguments(
            f"{shown(state)} is not a state: use {', '.join(ServiceState.__members__)}"
        ) from None


def _missing(id: str) -> NoService:
    return NoService(f"there is no service {id}: it was removed, or cleaned up after its end")


def _state(value: Reply) -> ServiceState:
    text = text_of(value)
    return ServiceState(text) if text in ServiceState.__members__ else ServiceState.WAIT


def _texts(values: Iterable[Reply]) -> list[str]:
    return [text_of(value) for value in values]
