"""Channels and streams of several users on one connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from chancy.errors import BrokerUnavailable, StatementFailed
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport import blocking_reads
from chancy.plugins.redis.transport.blocking_reads import StreamWatch, watching
from chancy.plugins.redis.transport.connection import RedisConnection
from chancy.plugins.redis.transport.redis_client import RedisClient, Reply
from chancy.plugins.redis.transport.scripts import Value
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def long_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """No read ends by itself."""
    monkeypatch.setattr(blocking_reads, "_BLOCK_MS", 60_000)


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[RedisClient]:
    made = RedisClient(RedisSettings(url=redis_url))
    yield made
    await made.close()


@pytest.fixture
async def watch(client: RedisClient) -> AsyncIterator[StreamWatch]:
    async with watching(client, "") as watch:
        yield watch


class Listener:
    """What one user of channels is told."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.lost: list[str] = []

    async def hear(self, watch: StreamWatch, *channels: bytes) -> Callable[[], None]:
        """Returns what ends it."""
        async with asyncio.timeout(30):  # less than a read blocks
            user = await watch.subscribe(channels, self.heard.append, self.lost.append)
        return lambda: watch.unsubscribe(user)


async def read(client: RedisClient, watch: StreamWatch, stream: str) -> asyncio.Task[None]:
    """Wait for a stream; returns when the read has begun."""
    task = asyncio.create_task(watch.arrived(stream, "0"))
    await blocked(client)
    return task


async def blocked(client: RedisClient) -> None:
    async def blocks() -> bool:
        return b"cmd=xread" in await client.command("CLIENT", "LIST")

    await eventually(blocks)


async def test_users_of_one_channel_hear_it_until_each_has_enough(
    client: RedisClient, watch: StreamWatch
) -> None:
    one, other = Listener(), Listener()
    end_one = await one.hear(watch, b"shared", b"own")
    end_other = await other.hear(watch, b"shared")
    await client.command("PUBLISH", "shared", "a")
    await eventually(lambda: one.heard == other.heard == [b"a"])
    end_other()
    again = Listener()
    await again.hear(watch, b"other")  # once it has ended
    await client.command("PUBLISH", "shared", "b")
    await client.command("PUBLISH", "own", "c")
    await eventually(lambda: one.heard == [b"a", b"b", b"c"])
    assert other.heard == [b"a"]
    end_one()


async def test_a_channel_is_heard_again_at_once_while_a_read_blocks(
    client: RedisClient, watch: StreamWatch
) -> None:
    waiting = await read(client, watch, "log")
    end = await Listener().hear(watch, b"channel")
    await blocked(client)
    end()
    await Listener().hear(watch, b"channel")
    waiting.cancel()


async def test_a_stream_that_cannot_be_read_ends_no_channel(
    client: RedisClient, watch: StreamWatch
) -> None:
    await client.command("SET", "log", "no stream")
    listener = Listener()
    await listener.hear(watch, b"channel")
    with pytest.raises(StatementFailed, match="WRONGTYPE"):
        await watch.arrived("log", "0")
    await client.command("PUBLISH", "channel", "a")
    await eventually(lambda: listener.heard == [b"a"])
    assert listener.lost == []


async def test_a_stream_that_cannot_be_read_delays_no_other(
    client: RedisClient, watch: StreamWatch
) -> None:
    waiting = await read(client, watch, "log")
    await client.command("SET", "no stream", "")
    with pytest.raises(StatementFailed, match="WRONGTYPE"):
        await watch.arrived("no stream", "0")
    assert not waiting.done()
    await client.command("XADD", "log", "*", "a", "b")
    async with asyncio.timeout(30):
        await waiting


async def test_large_entries_of_many_streams_do_not_end_the_connection(
    client: RedisClient, watch: StreamWatch
) -> None:
    """Redis closes a connection with channels for which it has to store 32 MiB."""
    listener = Listener()
    await listener.hear(watch, b"channel")
    streams = [f"log {number}" for number in range(40)]
    for stream in streams:
        await client.command("XADD", stream, "*", "a", bytes(1_000_000))
    async with asyncio.timeout(30):
        await asyncio.gather(*(watch.arrived(stream, "0") for stream in streams))
    await client.command("PUBLISH", "channel", "a")
    await eventually(lambda: listener.heard == [b"a"])
    assert listener.lost == []


async def test_a_channel_that_is_given_up_while_it_begins_is_left(
    client: RedisClient, watch: StreamWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, go, command = asyncio.Event(), asyncio.Event(), RedisConnection.command

    async def late(wire: RedisConnection, parts: Sequence[Value], timeout_s: float) -> Any:
        reply = await command(wire, parts, timeout_s)
        if parts[0] == "SUBSCRIBE":
            sent.set()
            await go.wait()
        return reply

    monkeypatch.setattr(RedisConnection, "command", late)
    hearing = asyncio.create_task(Listener().hear(watch, b"channel"))
    await sent.wait()
    hearing.cancel()
    await asyncio.wait([hearing])
    go.set()

    async def left() -> bool:
        return not await client.command("PUBSUB", "CHANNELS")

    await eventually(left)


async def test_a_stream_that_is_added_while_a_read_is_being_ended_is_read(
    client: RedisClient, watch: StreamWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, told, raw = asyncio.Event(), asyncio.Event(), client.raw

    async def late(key: Value, *parts: Value, timeout_s: float | None = None) -> Reply:
        reply = await raw(key, *parts, timeout_s=timeout_s)
        if "UNBLOCK" in parts and reply and not ended.is_set():
            ended.set()
            await told.wait()
        return reply

    monkeypatch.setattr(client, "raw", late)
    waiting = [await read(client, watch, "one")]
    waiting.append(asyncio.create_task(watch.arrived("two", "0")))
    await ended.wait()
    await blocked(client)  # in the next read
    waiting.append(asyncio.create_task(watch.arrived("three", "0")))
    await asyncio.sleep(0)
    told.set()
    await client.command("XADD", "three", "*", "a", "b")
    async with asyncio.timeout(30):
        await waiting[2]
    for task in waiting:
        task.cancel()


async def test_an_error_that_is_none_of_redis_is_told(
    client: RedisClient, watch: StreamWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a provider of credentials."""

    async def fail(*_: object) -> RedisConnection:
        raise ValueError("no credentials")

    with monkeypatch.context() as patch:
        patch.setattr(client, "wire", fail)
        for wait in (watch.arrived("log", "0"), Listener().hear(watch, b"channel")):
            with pytest.raises(BrokerUnavailable, match="ValueError: no credentials"):
                await wait
    await Listener().hear(watch, b"channel")
