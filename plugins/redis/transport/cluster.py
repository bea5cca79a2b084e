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
from chancy.plugins.redis.transport.connection import ConnectionPool
from chancy.plugins.redis.transport.scripts import Value

#: Most times that a command is sent after it was refused because its slot is elsewhere or being
#: moved, or because its server could not be reached.
_MOST_TURNS = 16
#: First and longest pause in seconds before a command is sent again while the keys of its slot are
#: being moved; it doubles. 1.2 s in all; moving a nearly empty slot takes 0.05 s.
_SOON_S, _LATE_S = 0.01, 0.1
#: Most servers that are remembered; a cluster has up to 1,000.
_MOST_NODES = 1_000


class ClusterRouter:
    """Sends scripts to the servers of a cluster; belongs to one event loop.

    A script that may have run is never sent again: a read that runs twice unnoticed would skip the
    events of its first reply. A script that was refused, or that reached no server, is sent again.

    :param known: URLs of servers, which the router updates; other routers may share the list.
    """

    def __init__(self, settings: RedisSettings, known: list[str]) -> None:
        self._settings = settings
        self._known = known
        self._teller = settings.url
        self._slots: dict[int, str] = {}
        self._servers: dict[str, ConnectionPool] = {}
        self._stale = True
        self._learning = asyncio.Lock()

    async def exchange(self, parts: Sequence[Value]) -> Any:
        """Run one script; returns its reply. Raises the errors of the client, and `OSError`."""
        [answer] = await self.exchange_many([parts])
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def exchange_many(self, commands: Sequence[Sequence[Value]]) -> list[Any]:
        """Run scripts in one round trip per server; an error takes the place of a reply.

        :param commands: ``EVALSHA`` or ``EVAL`` commands, whose fourth part is the first key.
        """
        slots = [_slot(parts[3]) for parts in commands]
        answers: list[Any] = [None] * len(commands)
        asked: dict[int, str] = {}
        left, pause_s = list(range(len(commands))), _SOON_S
        for turn in range(_MOST_TURNS):
            try:
                await self._learn()
            except (errors.RedisError, OSError):
                if turn:
                    break  # return the replies received so far
                raise
            by_server: dict[str, list[int]] = defaultdict(list)
            for at in left:
                url = asked.get(at) or self._slots.get(slots[at])
                if url is None:
                    self._stale = True
                    answers[at] = errors.ClusterDownError(f"no server has the slot {slots[at]}")
                else:
                    by_server[url].append(at)
            # Wait for all replies: a command in flight could otherwise be overtaken by a later one.
            await asyncio.gather(
                *(
                    self._send(url, commands, some, asked, answers)
                    for url, some in by_server.items()
                )
            )
            left = [at for some in by_server.values() for at in some if _again(answers[at], turn)]
            if not left:
                break
            asked = self._follow({at: answers[at] for at in left}, slots)
            if any(isinstance(answers[at], errors.TryAgainError) for at in left):
                await asyncio.sleep(pause_s)
                pause_s = min(_LATE_S, pause_s * 2)
        return answers

    async def server(self, key: str | bytes) -> RedisSettings:
        """The settings of the server that has a key. Raises the errors of the client."""
        await self._learn()
        url = self._slots.get(_slot(key))
        if url is None:
            self._stale = True
            raise errors.ClusterDownError("no server has the slot of this key")
        return _alone(self._settings, url)

    async def cluster(self) -> RedisSettings:
        """The settings of the cluster, with the URL of a server that replies now."""
        self._stale = True
        await self._learn()
        return self._settings.model_copy(update={"url": self._teller})

    def doubt(self) -> None:
        """Refresh the slots before the next command: a server did not reply as expected."""
        self._stale = True

    async def close(self) -> None:
        """Close the connections; the next use opens new ones."""
        servers, self._servers = self._servers, {}
        for server in servers.values():
            await server.close()

    async def _send(
        self,
        url: str,
        commands: Sequence[Sequence[Value]],
        some: Sequence[int],
        asked: Mapping[int, str],
        answers: list[Any],
    ) -> None:
        sent: list[Sequence[Value]] = []
        for at in some:
            if at in asked:
                sent.append(("ASKING",))
            sent.append(commands[at])
        try:
            found = iter(await self._to(url).exchange_many(sent))
            for at in some:
                if at in asked:
                    next(found)
                answers[at] = next(found)
        except (errors.RedisError, OSError) as error:
            self._lose(url)
            for at in some:
                answers[at] = error

    def _to(self, url: str) -> ConnectionPool:
        server = self._servers.get(url)
        if server is None:
            server = self._servers[url] = ConnectionPool(_alone(self._settings, url))
        return server

    def _follow(self, refused: Mapping[int, Exception], slots: Sequence[int]) -> dict[int, str]:
        """Follow redirections; returns the servers for slots that are being moved (``ASK``)."""
        asked: dict[int, str] = {}
        for at, error in refused.items():
            match error:
                # In this order: MovedError is a subclass of AskError.
                case errors.MovedError():
                    self._slots[slots[at]] = url_of(self._settings, error.host, error.port)
                case errors.AskError():
                    asked[at] = url_of(self._settings, error.host, error.port)
                case _:
                    pass
        return asked

    def _lose(self, url: str) -> None:
        """Handle a server that did not reply: refresh the slots from another server first."""
        self._stale = True
        # In one step, because threads read the list, too.
        self._known[:] = sorted(self._known, key=lambda known: known == url)

    async def _learn(self) -> None:
        """Refresh the slots from any server, if they may be stale."""
        async with self._learning:
            if not self._stale:
                return
            failed: Exception = errors.ConnectionError("no server of the cluster is known")
            for url in [*self._known]:
                try:
                    told = await self._to(url).exchange(("CLUSTER", "SLOTS"))
                except (errors.RedisError, OSError) as error:
                    failed = error
                    continue
                known = self._take(url, told)
                # Close servers that left the cluster.
                servers = self._servers
                for gone in servers.keys() - known:
                    await servers.pop(gone).close()
                return
            raise failed

    def _take(self, asked: str, told: Any) -> set[str]:
        """Store the slots of a reply to ``CLUSTER SLOTS``; returns the URLs of all its servers."""
        host = asked.rpartition("@")[2].rpartition("://")[2].rpartition(":")[0]
        slots: dict[int, str] = {}
        known: dict[str, None] = {}
        for first, last, *nodes in told:
            # A node without a known address has an empty host: it is the server that replied.
            urls = [
                url_of(self._settings, (node[0] or b"").decode() or host, int(node[1]))
                for node in nodes
            ]
            slots.update(dict.fromkeys(range(first, last + 1), urls[0]))
            known.update(dict.fromkeys(urls))
        self._slots, self._stale, self._teller = slots, False, asked
        remember(self._known, [*known])
        return {*known}


def url_of(settings: RedisSettings, host: str, port: int) -> str:
    """The URL of a server of the cluster."""
    scheme, _, rest = settings.url.partition("://")
    login, at, _ = rest.rpartition("@")
    place = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{scheme}://{login}{at}{place}:{port}/0"


def remember(known: list[str], urls: list[str]) -> None:
    """Put servers first in the known list, in random order, so that callers spread over them."""
    known[:] = list(dict.fromkeys([*random.sample(urls, len(urls)), *known]))[:_MOST_NODES]


def _alone(settings: RedisSettings, url: str) -> RedisSettings:
    """The settings for one server of a cluster."""
    return settings.model_copy(update={"cluster": False, "url": url})


def _slot(key: Value) -> int:
    return key_slot(key if isinstance(key, bytes) else str(key).encode())


def _again(answer: object, turn: int) -> bool:
    """Whether a command was not run and should be sent again."""
    if isinstance(answer, errors.AskError | errors.TryAgainError):
        return True
    # An OSError means that no connection was made. A connect timeout is not retried.
    return turn == 0 and isinstance(answer, OSError) and not isinstance(answer, TimeoutError)


#: Redirections that one call follows.
MOST_MOVES = 5
_MOST_KNOWN = 100


class ClusterMap:
    """The node of a shard, derived from redirections; sends no commands itself.

    All keys of a shard share one slot, so a single node has the whole shard, and the scripts go to
    that node as to a standalone server.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._known = [settings.url]
        self._at = 0
        #: Counts the moves: connections made before the last one should be dropped.
        self.moves = 0
        self.settings = settings.model_copy(update={"cluster": False})

    @property
    def clustered(self) -> bool:
        return self._settings.cluster

    def moved(self, error: errors.MovedError) -> None:
        """Follow a redirection."""
        self._go(self._url(error.host, error.port))

    def lost(self) -> None:
        """Go to the next known node, which may redirect: the current one does not reply."""
        if self.clustered:
            self._at = (self._at + 1) % len(self._known)
            self._go(self._known[self._at])

    def learn(self, nodes: bytes) -> None:
        """Store the nodes of a reply to ``CLUSTER NODES``."""
        for line in nodes.decode().splitlines():
            fields = line.split(" ")
            host, _, port = fields[1].partition("@")[0].rpartition(":")
            if host and port.isdecimal() and "noaddr" not in fields[2]:
                url = self._url(host, int(port))
                if url not in self._known and len(self._known) < _MOST_KNOWN:
                    self._known.append(url)

    def _go(self, url: str) -> None:
        if url not in self._known:
            self._known = [*self._known[-_MOST_KNOWN + 1 :], url]
        self._at = self._known.index(url)
        self.settings = self.settings.model_copy(update={"url": url})
        self.moves += 1

    def _url(self, host: str, port: int) -> str:
        scheme, _, rest = self._settings.url.partition("://")
        login, at, _ = rest.rpartition("@")
        place = f"[{host}]" if ":" in host else host
        return f"{scheme}://{login}{at}{place}:{port}/0"
