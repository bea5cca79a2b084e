"""The worker's calls to Redis: claim, renew and release leases, and clean up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chancy.plugins.redis.services.service_link import ServiceLink
from chancy.plugins.redis.services.values import text_of
from chancy.plugins.redis.transport.redis_client import Reply

#: Leases renewed by one script, so that it blocks Redis for at most 5 ms: 500 took 1.6 ms, at most
#: 3.0 ms; 1,000 took 3.3 ms, at most 8 ms on Redis 7.0.
_RENEWED_AT_ONCE = 500
#: Services swept by one script.
SWEPT_AT_ONCE = 100

Ending = Literal["lost", "reload", "STOPPED", "WAIT", "removed"]


@dataclass(frozen=True, slots=True)
class Taken:
    """A service that this worker has claimed.

    :ivar data: its data as stored, which may not be valid JSON.
    :ivar local: whether it belongs to this worker only.
    """

    id: str
    token: str
    name: str
    data: str
    local: bool = False


@dataclass(frozen=True, slots=True)
class Passed:
    """A queued id that is not to be run: ``missing``, ``running`` or ``stopped``."""

    id: str
    why: str


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep.

    :ivar over: services whose lease had ended, each with its new state.
    :ivar ghosts: ids without a hash, which were removed.
    :ivar skipped: whether it did nothing because of another sweep.
    """

    over: Sequence[tuple[str, str]]
    ghosts: Sequence[str]
    skipped: bool


@dataclass(frozen=True, slots=True)
class EndedService:
    """An ended service to clean up.

    :ivar times: number of cleanup attempts, including this one.
    :ivar fields: its hash.
    """

    id: str
    times: int
    fields: dict[str, str]


class Leases:
    """The leases of one worker. Thread-safe.

    :param owner: the name of the worker.
    :param lease_s: seconds of a lease from its claim or renewal.
    """

    def __init__(self, link: ServiceLink, owner: str, lease_s: float) -> None:
        self.link = link
        self.owner = owner
        self.lease_s = lease_s
        self._lease_ms = int(lease_s * 1000)

    def claim(self, most: int) -> Sequence[Taken | Passed]:
        """Claim up to ``most`` queued services, fewer if their data is large."""
        return [
            Taken(text_of(reply[0]), text_of(reply[2]), text_of(reply[3]), text_of(reply[4]))
            if reply[1] == b"run"
            else Passed(text_of(reply[0]), text_of(reply[1]))
            for reply in self.link.run("claim", self.owner, self._lease_ms, most)
        ]

    def claim_local(self, id: str, name: str, data: str) -> Taken | None:
        """Create a service of this worker only; return None if another worker runs its id."""
        token = self.link.run("claim_local", self.owner, self._lease_ms, id, name, data)
        return None if token is None else Taken(id, text_of(token), name, data, local=True)

    def renew(self, held: Sequence[tuple[str, str]]) -> list[str]:
        """Extend leases by id and token; return for each ``lost``, a requested action or ``""``."""
        found: list[str] = []
        for at in range(0, len(held), _RENEWED_AT_ONCE):
            flat = [part for lease in held[at : at + _RENEWED_AT_ONCE] for part in lease]
            found += map(text_of, self.link.run("renew", self._lease_ms, *flat))
        return found

    def apply_request(self, id: str, token: str) -> tuple[Ending, str, str]:
        """Carry out the request after the instance has stopped; for a reload, return its data."""
        answer = [text_of(part) for part in self.link.run("obey", id, token)]
        ending: Any = answer[0]
        return (ending, answer[1], answer[2]) if len(answer) > 1 else (ending, "", "")

    def finish(self, id: str, token: str, state: str, output: str, event: str) -> bool:
        """Record the end of a service; return whether the lease was still held."""
        return bool(self.link.run("finish", id, token, state, output, event))

    def release(self, id: str, token: str) -> str:
        """Release a service to the front of the queue; return its new state."""
        return text_of(self.link.run("release", id, token))

    def emit(self, id: str, token: str, message: str) -> bool:
        """Publish an event; return whether the lease was still held."""
        return bool(self.link.run("emit", id, token, message, lasting=False))

    def sweep(
        self, *, keep_s: float, adopt_s: float, timeout_s: float = 0.0, every_s: float = 0.0
    ) -> Swept:
        """Handle up to 100 services whose lease has ended, and remove ended ones that are too old.

        :param keep_s: seconds after its end at which a kept service is removed.
        :param adopt_s: seconds of the lease that a service RUNNING without a lease gets.
        :param timeout_s: seconds since the last renewal, or the end of the lease if that is later.
        :param every_s: do nothing if a worker has swept in so many seconds.
        """
        extra_ms = int(max(0.0, timeout_s - self.lease_s) * 1000)
        over, ghosts, skipped = self.link.run(
            "sweep",
            SWEPT_AT_ONCE,
            extra_ms,
            int(keep_s * 1000),
            int(adopt_s * 1000),
            int(every_s * 1000),
        )
        return Swept(
            [(text_of(id), text_of(what)) for id, what in over],
            [text_of(id) for id in ghosts],
            bool(skipped),
        )

    def tidy(self, most: int, lease_s: float, *, drop: bool) -> Sequence[EndedService]:
        """Claim ended services for their cleanup.

        :param lease_s: seconds until another worker may claim them.
        :param drop: remove them at once.
        """
        found = self.link.run("tidy", int(lease_s * 1000), most, 1 if drop else 0)
        return [
            EndedService(text_of(id), int(times), dict(_pairs(fields)))
            for id, times, fields in found
        ]

    def clean(self, service: EndedService) -> bool:
        """Remove a cleaned-up service; return False if it was restarted or claimed by another."""
        return bool(self.link.run("clean", service.id, service.times))


def _pairs(flat: Sequence[Reply]) -> list[tuple[str, str]]:
    return [(text_of(flat[at]), text_of(flat[at + 1])) for at in range(0, len(flat), 2)]
