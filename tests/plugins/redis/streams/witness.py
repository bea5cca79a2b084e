"""A record of every acknowledgement that servers run, by MONITOR, independent of the workers.

Each call of a script comes with what it was given, and behind it the commands that it ran. From
those alone it keeps a book of who has had which partition, in which epoch, until when.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.scripts import scripts
from tests.support.waiting import eventually

#: The position of the member in the arguments of scripts; the epoch follows it.
_MEMBER_AT = {
    "exchange": 1, "reack": 1, "bury": 1, "park": 1, "release": 1, "extend": 0, "halt": 0
}  # fmt: skip
#: The times in this book are a little later than the clock that the script has read.
_SLACK_S = 0.05
_LONGEST_LINE = 64 * 1024 * 1024
_LINE = re.compile(rb"\+?(\d+\.\d+) \[\d+ ([^\]]*)\] (.*)", re.DOTALL)
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a script by a worker."""

    at: float
    name: str
    keys: Sequence[str]
    args: Sequence[str]

    @property
    def claim(self) -> tuple[str, int] | None:
        """The member and the epoch of the caller."""
        at = _MEMBER_AT.get(self.name)
        return None if at is None else (self.args[at], int(self.args[at + 1]))


@dataclass
class Turn:
    """The owner of a partition by the commands that were run."""

    epoch: int = 0
    member: str = ""
    until: float = 0.0


@dataclass
class Witness:
    """The book of one or more servers.

    :ivar acked: the ids that were acknowledged, by log.
    :ivar wrong: acknowledgements by who had not the partition then, and partitions that were taken
        while another had them; there must be none.
    :ivar late: calls in the name of an epoch that was over; none may have acknowledged.
    """

    turns: dict[str, Turn] = field(default_factory=lambda: defaultdict(Turn))
    acked: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)
    late: list[Call] = field(default_factory=list)
    _texts: dict[str, str] = field(
        default_factory=lambda: {
            script.digest: script.name for script in scripts("streams").values()
        }
    )
    _heard: set[str] = field(default_factory=set)
    _servers: list[str] = field(default_factory=list)
    #: The call to which the next commands belong, by server.
    _calls: dict[str, Call | None] = field(default_factory=dict)

    @property
    def late_ids(self) -> int:
        """The number of ids that former owners tried to acknowledge."""
        return sum(len(call.args) - 6 for call in self.late if call.name == "exchange")

    async def catch_up(self) -> None:
        """Wait until the book has everything that has happened so far."""
        for url in self._servers:
            token = uuid.uuid4().hex
            reader, writer = await _connect(url)
            try:
                writer.write(f"ECHO {token}\r\n".encode())
                async with asyncio.timeout(10):
                    await reader.readline()
                    await eventually(partial(self._heard.__contains__, token))
            finally:
                writer.close()

    async def watch(self, url: str, ready: asyncio.Event) -> None:
        """Keep the book of a server until cancelled."""
        self._servers.append(url)
        reader, writer = await _connect(url)
        try:
            writer.write(b"MONITOR\r\n")
            assert await reader.readline() == b"+OK\r\n"
            ready.set()
            while line := await reader.readline():
                self._hear(url, line)
        finally:
            writer.close()

    def _hear(self, url: str, line: bytes) -> None:
        found = _LINE.fullmatch(line.rstrip(b"\r\n"))
        if found is None:
            return
        at, by, rest = float(found[1]), found[2], found[3]
        words = [word.decode(errors="replace") for word in _WORD.findall(rest)]
        verb = words[0].upper()
        if by != b"lua":
            self._calls[url] = self._call(at, verb, words)
            if verb == "ECHO":
                self._heard.add(words[1])
            if verb == "XACK":
                self.wrong.append(f"{words}: outside of a script")
            return
        call = self._calls[url]
        if call is not None:
            self._command(call, verb, words)

    def _call(self, at: float, verb: str, words: Sequence[str]) -> Call | None:
        if verb not in ("EVALSHA", "EVAL"):
            return None
        digest = words[1]
        if verb == "EVAL":
            text = words[1].encode().decode("unicode_escape").encode("latin-1")
            digest = hashlib.sha1(text, usedforsecurity=False).hexdigest()
        count = int(words[2])
        name = self._texts.get(digest, "unknown")
        call = Call(at, name, words[3 : 3 + count], words[3 + count :])
        claim = call.claim
        if claim is not None:
            turn = self.turns[call.keys[0]]
            if claim != (turn.member, turn.epoch):
                self.late.append(call)
        return call

    def _command(self, call: Call, verb: str, words: Sequence[str]) -> None:
        if verb == "HINCRBY" and words[2] == "epoch":
            turn, member = self.turns[words[1]], call.args[1]
            if member != turn.member and call.at < turn.until - _SLACK_S:
                self.wrong.append(
                    f"{call.name} at {call.at:.3f} of {words[1]} by {member}, though {turn.member} "
                    f"has it until {turn.until:.3f}"
                )
            turn.epoch += int(words[3])
            turn.member = member
        elif verb == "HSET" and ":own:" in words[1]:
            told = dict(zip(words[2::2], words[3::2], strict=True))
            if "until" in told:
                self.turns[words[1]].until = int(told["until"]) / 1000
        elif verb == "XACK":
            self._ack(call, words[1], words[3:])

    def _ack(self, call: Call, log: str, ids: Sequence[str]) -> None:
        self.acked[log] += ids
        turn = self.turns[call.keys[0]]
        what = f"{call.name} at {call.at:.3f} of {log} by {call.claim}: {ids}"
        if call.claim != (turn.member, turn.epoch):
            self.wrong.append(f"{what}, though {turn.member} has it in epoch {turn.epoch}")
        elif call.at > turn.until + _SLACK_S:
            self.wrong.append(f"{what}, though the lease has ended at {turn.until:.3f}")


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return await asyncio.open_unix_connection(parts.path, limit=_LONGEST_LINE)
    return await asyncio.open_connection(parts.hostname, parts.port, limit=_LONGEST_LINE)


async def _primaries(link: RedisClient, url: str) -> Sequence[str]:
    if not link.clustered:
        return [url]
    slots = await link.command("CLUSTER", "SLOTS")
    ports = {primary[1] for _, _, primary, *_ in slots}
    return [f"redis://127.0.0.1:{port}/0" for port in sorted(ports)]


@contextlib.asynccontextmanager
async def witness(link: RedisClient, url: str) -> AsyncGenerator[Witness]:
    """Keep the book of a server, or of the primaries of a cluster, from here on."""
    made = Witness()
    async with asyncio.TaskGroup() as group:
        watching = []
        for one in await _primaries(link, url):
            ready = asyncio.Event()
            watching.append(group.create_task(made.watch(one, ready)))
            await ready.wait()
        try:
            yield made
        finally:
            for task in watching:
                task.cancel()
