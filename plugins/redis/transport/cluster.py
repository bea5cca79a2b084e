"""The servers of a cluster: which of them has a key, and the way to each."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from redis import exceptions as errors
from redis.crc import key_slot

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.pool import ConnectionPool
from chancy.plugins.redis.transport.scripts import Value

#: Times that one command is sent anew after it was refused: because its slot is elsewhere, is
#: being moved, or its server could not be reached.
_MOST_TURNS = 16
#: Seconds until a command is sent anew while the keys of its slot are being moved, at first and at
#: last: they double. 1.2 in all; what it takes to move a slot without much in it is 0.05.
_SOON_S, _LATE_S = 0.01, 0.1
#: Servers that are remembered; a cluster has up to 1,000.
_MOST_KNOWN = 1_000


class ClusterRouter:
    """Sends scripts to the servers of a cluster, on connections of ours. Of one event loop.

    What may have been run is never sent again: a read that happened twice unseen would leave out
    the events of its first answer. What was refused is, and so is what found no server.

    :param known: urls of servers, which it keeps up to date; others may read it, and do so, too.
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
        """Run one script; gives its answer. Raises the errors of the client, and `OSError`."""
        [answer] = await self.exchange_many([parts])
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def exchange_many(self, commands: Sequence[Sequence[Value]]) -> list[Any]:
        """Run scripts, in one round trip for each server; an error takes the place of an answer.

        :param commands: ``EVALSHA`` or ``EVAL``: the fourth part is the first key.
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
                    break  # what was answered is answered
                raise
            by_server: dict[str, list[int]] = defaultdict(list)
            for at in left:
                url = asked.get(at) or self._slots.get(slots[at])
                if url is None:
                    self._stale = True
                    answers[at] = errors.ClusterDownError(f"no server has the slot {slots[at]}")
                else:
                    by_server[url].append(at)
            # All of them are waited for: what is still under way could overtake what comes next.
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
        """The settings of the cluster, by a server of it that answers now."""
        self._stale = True
        await self._learn()
        return self._settings.model_copy(update={"url": self._teller})

    def doubt(self) -> None:
        """A server does not answer as it should: ask again which has what."""
        self._stale = True

    async def close(self) -> None:
        """Drop the connections; the next use makes new ones."""
        servers, self._servers = self._servers, {}
        for one in servers.values():
            await one.close()

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
        """Take note of redirections; gives who is to be asked for what is on its way there."""
        asked: dict[int, str] = {}
        for at, error in refused.items():
            match error:
                # In this order: the first is a kind of the second.
                case errors.MovedError():
                    self._slots[slots[at]] = url_of(self._settings, error.host, error.port)
                case errors.AskError():
                    asked[at] = url_of(self._settings, error.host, error.port)
                case _:
                    pass
        return asked

    def _lose(self, url: str) -> None:
        """A server cannot be reached, or has not answered: others may know who follows it."""
        self._stale = True
        # In one step: threads look, too.
        self._known[:] = sorted(self._known, key=lambda one: one == url)

    async def _learn(self) -> None:
        """Ask any server which of them has what, if that is in doubt."""
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
                # Those that are no more.
                servers = self._servers
                for gone in servers.keys() - known:
                    await servers.pop(gone).close()
                return
            raise failed

    def _take(self, asked: str, told: Any) -> set[str]:
        """Take note of what ``CLUSTER SLOTS`` told; gives all servers that it told of."""
        host = asked.rpartition("@")[2].rpartition("://")[2].rpartition(":")[0]
        slots: dict[int, str] = {}
        known: dict[str, None] = {}
        for first, last, *nodes in told:
            # A node that does not know its own name gives none.
            urls = [
                url_of(self._settings, (one[0] or b"").decode() or host, int(one[1]))
                for one in nodes
            ]
            slots.update(dict.fromkeys(range(first, last + 1), urls[0]))
            known.update(dict.fromkeys(urls))
        self._slots, self._stale, self._teller = slots, False, asked
        remember(self._known, [*known])
        return {*known}


def url_of(settings: RedisSettings, host: str, port: int) -> str:
    """The url of a server of the cluster."""
    scheme, _, rest = settings.url.partition("://")
    login, at, _ = rest.rpartition("@")
    place = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{scheme}://{login}{at}{place}:{port}/0"


def remember(known: list[str], urls: list[str]) -> None:
    """Put servers before those that were known; not all callers begin with the same one."""
    known[:] = list(dict.fromkeys([*random.sample(urls, len(urls)), *known]))[:_MOST_KNOWN]


def _alone(settings: RedisSettings, url: str) -> RedisSettings:
    """The settings of one server of a cluster."""
    return settings.model_copy(update={"cluster": False, "url": url})


def _slot(key: Value) -> int:
    return key_slot(key if isinstance(key, bytes) else str(key).encode())


def _again(answer: object, turn: int) -> bool:
    """Whether a command was not run, and may be if it is sent once more."""
    if isinstance(answer, errors.AskError | errors.TryAgainError):
        return True
    # Of the system, and not of a connection: there was none. To wait twice helps nobody.
    return turn == 0 and isinstance(answer, OSError) and not isinstance(answer, TimeoutError)


#: Redirections that one call follows.
MOST_MOVES = 5
_MOST_KNOWN = 100


class ClusterMap:
    """Knows where to go, by what servers answered. Asks nobody itself.

    All keys of a shard share one slot, so that a single node has all of it: the scripts go there
    on connections of ours, as to a server that stands alone.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._known = [settings.url]
        self._at = 0
        #: Counts the moves: what was made for an earlier one is to be let go of.
        self.moves = 0
        self.settings = settings.model_copy(update={"cluster": False})

    @property
    def clustered(self) -> bool:
        return self._settings.cluster

    def moved(self, error: errors.MovedError) -> None:
        """Follow a redirection."""
        self._go(self._url(error.host, error.port))

    def lost(self) -> None:
        """The node does not answer: the next of those that are known may know who has the slot."""
        if self.clustered:
            self._at = (self._at + 1) % len(self._known)
            self._go(self._known[self._at])

    def learn(self, nodes: bytes) -> None:
        """Take note of the nodes that ``CLUSTER NODES`` told of."""
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
