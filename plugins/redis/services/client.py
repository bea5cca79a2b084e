"""What may be asked of services, from any thread of any process."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from chancy.errors import ChancyError, InvalidArguments
from chancy.plugins.redis.services.base import Listing, ServiceReport, ServiceState
from chancy.plugins.redis.services.values import (
    as_json,
    check_id,
    check_name,
    data_of,
    fields_of,
    readable,
)
from chancy.plugins.redis.transport.sync_client import Reply, SyncRedisClient
from chancy.text import shown

#: Others that set the data at the same time, before one is given up.
_TRIES = 20


class ServiceRuns(ChancyError):
    """A service was started that runs already: there is one instance of each id."""


class NoService(ChancyError):
    """There is no service of an id."""


class ServiceStore:
    """The commands to services and what is known of them, for threads.

    Each raises `BrokerUnavailable` when Redis is away; the outcome is unknown then, and all of
    them may be repeated: `start` with an id, as without one it starts another.
    """

    def __init__(self, link: SyncRedisClient) -> None:
        self.link = link

    def start(self, name: str, /, id: str | None = None, cleanup: bool = True, **data: Any) -> str:
        """Let a service wait for a worker; gives its id.

        One that waits gets the new data and keeps its place; one that was stopped or has ended
        begins anew.

        :param name: of its class. Whether a worker knows it, only that worker can tell.
        :param id: a new one unless given.
        :param cleanup: whether it is forgotten after its end.
        :raises ServiceRuns: it runs; `reload` or `restart` it.
        :raises InvalidArguments: the data is nothing that JSON can say.
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
        """`start` for data in a mapping, whose keys may be ``id`` and ``cleanup`` too."""
        chosen = str(uuid.uuid4()) if id is None else check_id(id)
        text = as_json(dict(data), f"the data of the service {name!r}")
        kept = "true" if cleanup else "false"
        if self.link.run("start", chosen, check_name(name), text, kept) == b"RUNNING":
            raise ServiceRuns(
                f"the service {chosen} runs: reload or restart it, or start one of another id"
            )
        return chosen

    def stop(self, id: str) -> ServiceState:
        """Have it stopped; it can be restarted. Gives the state that it was in.

        One that runs is told at once if Redis can be reached, or else as soon as its worker can.

        :raises NoService: there is none.
        """
        return self._request(id, "stop")

    def reload(self, id: str) -> ServiceState:
        """Have its worker stop it and begin it anew with the data that it has now.

        One that does not run has nothing to reload: it reads them when it begins.

        :raises NoService: there is none.
        """
        return self._request(id, "reload")

    def restart(self, id: str) -> ServiceState:
        """Let it run again, in any worker; one that runs is stopped first. Gives what it was.

        :raises NoService: there is none.
        """
        _, state = self._restart(id)
        return state

    def restart_if(self, id: str, states: Iterable[ServiceState | str]) -> bool:
        """`restart` it if it is in one of these states; whether it was.

        :raises NoService: there is none.
        :raises InvalidArguments: one of them is no state.
        """
        wanted = [_parsed_state(one).value for one in states]
        return self._restart(id, *wanted)[0] if wanted else False

    def remove(self, id: str) -> ServiceState | None:
        """Forget all about it; one that runs is stopped by its worker first.

        Gives the state that it was in, None if there is none.
        """
        found = self.link.run("ask", check_id(id), "remove")
        return None if found is None else _state(found)

    def get(self, id: str) -> ServiceReport | None:
        """What is known of it; None if there is none."""
        fields = self.fields(id)
        return report_of(id, fields) if fields else None

    def set(self, id: str, /, **data: Any) -> None:
        """Set some of its data, and leave the others; a running one sees it after a `reload`.

        :raises NoService: there is none.
        :raises InvalidArguments: it is nothing that JSON can say, or others set it all the time.
        """
        for _ in range(_TRIES):
            old = self.fields(id, ["data"]).get("data", "")
            new = as_json(data_of(old) | data, f"the data of the service {id}")
            done = self.link.run("swap", check_id(id), old, new)
            if done is None:
                raise _missing(id)
            if done:
                return
        raise InvalidArguments(f"the data of the service {id} was set by others {_TRIES} times")

    def list(self) -> Listing:
        """The ids of all services."""
        keys = self.link.keys
        waiting = self.link.command("LRANGE", keys.waiting, 0, -1)
        rung = self.link.command("LRANGE", keys.rung, 0, -1)
        return Listing(
            new=_texts([*reversed(rung), *reversed(waiting)]),
            active=sorted(_texts(self.link.command("SMEMBERS", keys.known))),
            ended=_texts(reversed(self.link.command("LRANGE", keys.ended, 0, -1))),
        )

    # What is kept, as it is kept

    def fields(self, id: str, names: Iterable[str] | None = None) -> dict[str, str]:
        """The fields of its hash, some or all; those that are not there are left out."""
        key = self.link.keys.of(check_id(id))
        if names is None:
            found = self.link.command("HGETALL", key)
            return {_text(name): _text(value) for name, value in found.items()}
        asked = list(names)
        values = self.link.command("HMGET", key, *asked) if asked else []
        return {
            name: _text(value)
            for name, value in zip(asked, values, strict=True)
            if value is not None
        }

    def write(self, id: str, fields: Mapping[str, object]) -> None:
        """Set fields of its hash; what is no text is written as JSON."""
        if fields:
            self.link.command("HSET", self.link.keys.of(check_id(id)), *fields_of(fields))

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
    """A service by its hash."""
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


def report_json(report: ServiceReport) -> str:
    """For people and scripts."""
    shown = {name: getattr(report, name) for name in report.__dataclass_fields__}
    return json.dumps(shown, default=str)


def _parsed_state(state: ServiceState | str) -> ServiceState:
    try:
        return ServiceState(state)
    except ValueError:
        raise InvalidArguments(
            f"{shown(state)} is no state: use {', '.join(ServiceState.__members__)}"
        ) from None


def _missing(id: str) -> NoService:
    return NoService(f"there is no service {id}: it was removed, or cleaned up after its end")


def _state(value: Reply) -> ServiceState:
    text = _text(value)
    return ServiceState(text) if text in ServiceState.__members__ else ServiceState.WAIT


def _texts(values: Iterable[Reply]) -> list[str]:
    return [_text(value) for value in values]


def _text(value: Reply) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
