"""What the worker of services says to Redis: taking, renewing and giving back leases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chancy.plugins.redis.transport.sync_client import Reply, SyncRedisClient

#: Of how many leases one script is told, so that it holds up no others for more than 5 ms: 500 took
#: 1.6 ms, 3.0 at the most; 1,000 took 3.3 ms, and 8 at the most on Redis 7.0.
_RENEWED_AT_ONCE = 500
#: Of what is swept, in one script.
SWEPT_AT_ONCE = 100

Ending = Literal["lost", "reload", "STOPPED", "WAIT", "removed"]


@dataclass(frozen=True, slots=True)
class Taken:
    """A service that was given to this worker.

    :ivar data: its JSON as it is stored; it may be no JSON at all.
    :ivar local: whether it is for this worker only.
    """

    id: str
    token: str
    name: str
    data: str
    local: bool = False


@dataclass(frozen=True, slots=True)
class Passed:
    """An id that was in the line, and is nothing to run: ``missing``, ``running``, ``stopped``."""

    id: str
    why: str


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found.

    :ivar over: services that nobody ran any more, with what has become of each.
    :ivar ghosts: ids without a hash, which are forgotten.
    """

    over: Sequence[tuple[str, str]]
    ghosts: Sequence[str]


@dataclass(frozen=True, slots=True)
class EndedService:
    """A service to clean up after.

    :ivar times: how often it was taken for that, this time too.
    :ivar fields: its hash.
    """

    id: str
    times: int
    fields: dict[str, str]


class Leases:
    """The leases of one worker. Its calls may be made from any thread.

    :param owner: the name of the worker.
    :param lease_s: for which one is given, and extended each time.
    """

    def __init__(self, link: SyncRedisClient, owner: str, lease_s: float) -> None:
        self.link = link
        self.owner = owner
        self.lease_s = lease_s
        self._lease_ms = int(lease_s * 1000)
        self._cursor = "0"

    def claim(self, most: int) -> Sequence[Taken | Passed]:
        """Take up to so many of those that wait. With none, only order the line."""
        return [
            Taken(_text(one[0]), _text(one[2]), _text(one[3]), _text(one[4]))
            if one[1] == b"run"
            else Passed(_text(one[0]), _text(one[1]))
            for one in self.link.run("claim", self.owner, self._lease_ms, most)
        ]

    def ring(self, block_s: float) -> bool:
        """Wait until something is in the line; whether there is.

        It is moved aside, as a command that only looks cannot wait; `claim` puts it back.
        """
        keys = self.link.keys
        moved = self.link.command("BLMOVE", keys.waiting, keys.rung, "RIGHT", "LEFT", block_s)
        return moved is not None

    def claim_local(self, id: str, name: str, data: str) -> Taken | None:
        """Make a service that is for this worker; None if another runs one of the same id."""
        token = self.link.run("claim_local", self.owner, self._lease_ms, id, name, data)
        return None if token is None else Taken(id, _text(token), name, data, local=True)

    def renew(self, held: Sequence[tuple[str, str]]) -> list[str]:
        """Extend leases, given by id and token; for each ``lost``, or what is wanted."""
        found: list[str] = []
        for at in range(0, len(held), _RENEWED_AT_ONCE):
            flat = [part for one in held[at : at + _RENEWED_AT_ONCE] for part in one]
            found += map(_text, self.link.run("renew", self._lease_ms, *flat))
        return found

    def last_nudge(self) -> str:
        """Where in the stream of nudges a reader begins."""
        found = self.link.command("XREVRANGE", self.link.keys.control, "+", "-", "COUNT", 1)
        return _text(found[0][0]) if found else "0-0"

    def nudges(self, after: str, block_ms: int) -> tuple[str, set[str]]:
        """The ids of which something is wanted since; waits for one."""
        found = self.link.command(
            "XREAD", "COUNT", 1000, "BLOCK", block_ms, "STREAMS", self.link.keys.control, after
        )
        entries = found[0][1] if found else []
        last = _text(entries[-1][0]) if entries else after
        return last, {_text(fields[b"id"]) for _, fields in entries if fields and b"id" in fields}

    def apply_request(self, id: str, token: str) -> tuple[Ending, str, str]:
        """Do what is wanted, once the instance has stopped; with a name and data if it is reload."""
        answer = [_text(part) for part in self.link.run("obey", id, token)]
        ending: Any = answer[0]
        return (ending, answer[1], answer[2]) if len(answer) > 1 else (ending, "", "")

    def finish(self, id: str, token: str, state: str, output: str, event: str) -> bool:
        """Write down how a service ended; whether the lease was still ours."""
        return bool(self.link.run("finish", id, token, state, output, event))

    def release(self, id: str, token: str) -> str:
        """Give a service back, the next to be taken; what has become of it."""
        return _text(self.link.run("release", id, token))

    def emit(self, id: str, token: str, message: str) -> bool:
        """Publish an event; whether the lease was still ours."""
        return bool(self.link.run("emit", id, token, message, lasting=False))

    def sweep(self, *, keep_s: float, adopt_s: float, timeout_s: float = 0.0) -> Swept:
        """Find services that nobody runs any more, up to 100 of them; and what is too old.

        :param keep_s: since the end of what is kept.
        :param adopt_s: for what runs without any lease to get one by then.
        :param timeout_s: since the last renewal; the end of the lease if that is later.
        """
        extra_ms = int(max(0.0, timeout_s - self.lease_s) * 1000)
        over, ghosts, cursor = self.link.run(
            "sweep",
            SWEPT_AT_ONCE,
            extra_ms,
            int(keep_s * 1000),
            int(adopt_s * 1000),
            self._cursor,
        )
        self._cursor = _text(cursor)
        return Swept([(_text(id), _text(what)) for id, what in over], [_text(id) for id in ghosts])

    def tidy(self, most: int, lease_s: float, *, drop: bool) -> Sequence[EndedService]:
        """Take some of what has ended.

        :param lease_s: until another one may take them.
        :param drop: forget them at once.
        """
        found = self.link.run("tidy", int(lease_s * 1000), most, 1 if drop else 0)
        return [
            EndedService(_text(id), int(times), dict(_pairs(fields))) for id, times, fields in found
        ]

    def clean(self, one: EndedService) -> bool:
        """Forget one that was taken; False if it was begun anew or taken by another."""
        return bool(self.link.run("clean", one.id, one.times))


def _text(value: Reply) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _pairs(flat: Sequence[Reply]) -> list[tuple[str, str]]:
    return [(_text(flat[at]), _text(flat[at + 1])) for at in range(0, len(flat), 2)]
