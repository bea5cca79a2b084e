"""Routing in a cluster: which server has a key, and connections to each server."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from redis import exceptions as errors
from redis.crc import key_slot

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.connection import Connector, RedisConnection
from chancy.plugins.redis.transport.location import Location, Place
from chancy.plugins.redis.transport.pool import ConnectionPool
from chancy.plugins.redis.transport.scripts import Value

#: A key, and commands for its server, which are sent at once on one connection.
Group = tuple[Value, Sequence[Sequence[Value]]]

#: Most times that a command is sent after it was refused because its slot is elsewhere or being
#: moved, or because its server could not be reached.
_MOST_TURNS = 16
#: First and longest pause in seconds before a command is sent again while the keys of its slot are
#: being moved; it doubles. 1.2 s in all; moving a nearly empty slot takes 0.05 s.
_SOON_S, _LATE_S = 0.01, 0.1
_REFUSALS = (errors.AskError, errors.TryAgainError)
#: Most servers that are remembered; a cluster has up to 1,000.
_MOST_NODES = 1_000


class ClusterRouter:
    """Sends commands to the servers of a cluster; belongs to one event loop.

    A command that may have run is never sent again: a read that runs twice unnoticed would skip the
    events of its first reply. One that was refused, or that reached no server, is sent again.

    :param known: servers, which the router updates; other routers may share the list.
    """

    def __init__(self, settings: RedisSettings, location: Location, known: list[Place]) -> None:
        self._settings = settings
        self._location = location
        self._known = known
        self._slots: dict[int, Place] = {}
        self._servers: dict[Place, ConnectionPool] = {}
        self._stale = True
        self._learning = asyncio.Lock()
        # Failed attempts to refresh the slots, and the error of the last one.
        self._failures = 0
        self._failed: Exception | None = None

    async def exchange(
        self,
        groups: Sequence[Group],
        *,
        ask: bool,
        last: Sequence[Value] | None = None,
        timeout_s: float | None = None,
    ) -> list[list[Any] | Exception]:
        """Send groups in one round trip per server; an error takes the place of lost replies.

        Raises the errors of redis-py, and `OSError`, if no server replies.

        :param ask: whether a group may run on the server to which its slot is being moved: no
            command uses other keys than those that it names.
        :param last: a command after those of each server, whose reply every group gets.
        """
        slots = [_slot(key) for key, _ in groups]
        answers: list[Any] = [None] * len(groups)
        asked: dict[int, Place] = {}
        left, pause_s = list(range(len(groups))), _SOON_S
        for turn in range(_MOST_TURNS):
            try:
                await self._learn(timeout_s)
            except (errors.RedisError, OSError):
                if turn:
                    break  # return the replies received so far
                raise
            by_server: dict[Place, list[int]] = defaultdict(list)
            for at in left:
                place = asked.get(at) or self._slots.get(slots[at])
                if place is None:
                    self._stale = True
                    answers[at] = errors.ClusterDownError(f"no server has the slot {slots[at]}")
                else:
                    by_server[place].append(at)
            # Wait for all replies: a command in flight could otherwise be overtaken by a later one.
            await asyncio.gather(
                *(
                    self._send(place, groups, some, asked, answers, last, timeout_s)
                    for place, some in by_server.items()
                )
            )
            left = [at for some in by_server.values() for at in some if _again(answers[at], turn)]
            if not left:
                break
            asked = self._follow({at: answers[at] for at in left}, slots, ask)
            if any(_is_moving(answers[at]) for at in left if at not in asked):
                await asyncio.sleep(pause_s)
                pause_s = min(_LATE_S, pause_s * 2)
        return answers

    async def connector(self, key: Value) -> Connector:
        """Opens connections to the server that has a key. Raises the errors of redis-py."""
        await self._learn(None)
        place = self._slots.get(_slot(key))
        if place is None:
            self._stale = True
            raise errors.ClusterDownError("no server has the slot of this key")
        return self._connector(place)

    def doubt(self) -> None:
        """Refresh the slots before the next command: a server did not reply as expected."""
        self._stale = True

    def close(self) -> list[asyncio.Task[RedisConnection]]:
        """Close the connections as `ConnectionPool.close` does; the next use opens new ones."""
        servers, self._servers = self._servers, {}
        return [cancelled for server in servers.values() for cancelled in server.close()]

    async def _send(
        self,
        place: Place,
        groups: Sequence[Group],
        some: Sequence[int],
        asked: Mapping[int, Place],
        answers: list[Any],
        last: Sequence[Value] | None,
        timeout_s: float | None,
    ) -> None:
        sent = [
            [part for command in groups[at][1] for part in (("ASKING",), command)]
            if at in asked
            else groups[at][1]
            for at in some
        ]
        try:
            found = await self._to(place).exchange_groups(sent, last, timeout_s)
            for at, replies in zip(some, found, strict=True):
                if at in asked:
                    del replies[: 2 * len(groups[at][1]) : 2]
                answers[at] = replies
        except (errors.RedisError, OSError) as error:
            self._lose(place)
            for at in some:
                answers[at] = error

    def _connector(self, place: Place) -> Connector:
        return Connector(self._location, place, timeout_s=self._settings.connect_timeout_s)

    def _to(self, place: Place) -> ConnectionPool:
        server = self._servers.get(place)
        if server is None:
            made = ConnectionPool(self._connector(place), self._settings.timeout_s)
            server = self._servers[place] = made
        return server

    def _follow(
        self, refused: Mapping[int, Any], slots: Sequence[int], ask: bool
    ) -> dict[int, Place]:
        """Follow redirections; returns the servers for slots that are being moved (``ASK``)."""
        asked: dict[int, Place] = {}
        for at, answer in refused.items():
            match answer if isinstance(answer, Exception) else answer[0]:
                # In this order: MovedError is a subclass of AskError.
                case errors.MovedError() as error:
                    self._slots[slots[at]] = (error.host, error.port)
                case errors.AskError() as error if ask:
                    asked[at] = (error.host, error.port)
                case _:
                    pass
        return asked

    def _lose(self, place: Place) -> None:
        """Handle a server that did not reply: refresh the slots from another server first."""
        self._stale = True
        # In one step, because threads read the list, too.
        self._known[:] = sorted(self._known, key=lambda known: known == place)

    async def _learn(self, timeout_s: float | None) -> None:
        """Refresh the slots from any server, if they may be stale. Calls that wait for an attempt
        share its failure: each waits for the timeouts of one."""
        before = self._failures
        async with self._learning:
            if not self._stale:
                return
            if self._failed is not None and self._failures != before:
                raise self._failed
            failed: Exception = errors.ConnectionError("no server of the cluster is known")
            for place in [*self._known]:
                try:
                    [reply] = await self._to(place).exchange([("CLUSTER", "SLOTS")], timeout_s)
                    if isinstance(reply, Exception):
                        raise reply
                except (errors.RedisError, OSError) as error:
                    failed = error
                    continue
                known = self._take(place, reply)
                # Close servers that left the cluster.
                servers = self._servers
                for gone in servers.keys() - known:
                    servers.pop(gone).close()
                return
            self._failures, self._failed = self._failures + 1, failed
            raise failed

    def _take(self, asked: Place, reply: Any) -> set[Place]:
        """Store the slots of a reply to ``CLUSTER SLOTS``; returns all its servers."""
        slots: dict[int, Place] = {}
        known: dict[Place, None] = {}
        for first, last, *nodes in reply:
            # A node without a known address has an empty host: it is the server that replied.
            places = [((node[0] or b"").decode() or asked[0], int(node[1])) for node in nodes]
            slots.update(dict.fromkeys(range(first, last + 1), places[0]))
            known.update(dict.fromkeys(places))
        self._slots, self._stale = slots, False
        # In random order, so that processes spread over the servers.
        spread = random.sample([*known], len(known))
        self._known[:] = list(dict.fromkeys([*spread, *self._known]))[:_MOST_NODES]
        return {*known}


def _slot(key: Value) -> int:
    return key_slot(key if isinstance(key, bytes) else str(key).encode())


def _again(answer: Any, turn: int) -> bool:
    """Whether a group was not run and should be sent again."""
    if isinstance(answer, list):
        # Of the write for replicas and a script, the script. ``WAIT``, the third, names no key.
        return isinstance(answer[:2][-1], _REFUSALS)
    # An OSError means that no connection was made. A connect timeout is not retried.
    return turn == 0 and isinstance(answer, OSError) and not isinstance(answer, TimeoutError)


def _is_moving(answer: Any) -> bool:
    """Whether the keys of a group that was refused are being moved."""
    return isinstance(answer, list) and not isinstance(answer[0], errors.MovedError)
