"""One connection to a server, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import closing

import pytest
from redis import exceptions as errors

from chancy.plugins.redis import RedisSettings
from chancy.plugins.redis.transport.connection import ConnectionPool, Connector, RedisConnection
from chancy.testing.conformance.bench import Bench, prepared
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

Start = Callable[..., RedisServer]


@pytest.fixture
async def wire(redis_url: str) -> AsyncIterator[RedisConnection]:
    made = await Connector(RedisSettings(url=redis_url)).wire()
    yield made
    made.close()


async def test_answers_of_every_size_and_kind_come_whole(wire: RedisConnection) -> None:
    long = b"\r\n\0" * 500_000
    assert await wire.command(("SET", "a", long), 5) == b"OK"
    assert await wire.command(("GET", "a"), 5) == long
    assert await wire.command(("GET", "b"), 5) is None
    assert await wire.command(("MGET", "a", "b"), 5) == [long, None]
    answers = await wire.commands([("INCR", "n"), ("INCR", "a"), ("INCRBY", "n", 5)], 5)
    assert (answers[0], type(answers[1]), answers[2]) == (1, errors.ResponseError, 6)
    assert await wire.commands([], 5) == []


async def test_an_error_is_an_answer(wire: RedisConnection) -> None:
    with pytest.raises(errors.NoScriptError):
        await wire.command(("EVALSHA", "0" * 40, 0), 5)
    assert await wire.command(("PING",), 5) == b"PONG"


async def test_an_answer_that_is_late_or_unwanted_ends_the_wire(redis_url: str) -> None:
    """It would be taken for the answer to the next command."""
    dial = Connector(RedisSettings(url=redis_url))
    late = await dial.wire()
    with pytest.raises(errors.TimeoutError):
        await late.command(("BLPOP", "nothing", 1), 0.05)
    left = await dial.wire()
    task = asyncio.create_task(left.command(("BLPOP", "nothing", 1), 5))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for one in (late, left):
        assert one.ended.done()
        with pytest.raises(errors.ConnectionError):
            await one.command(("PING",), 5)


async def test_the_timeout_is_of_each_command(wire: RedisConnection) -> None:
    for _ in range(4):
        assert await wire.command(("BLPOP", "nothing", 0.1), 0.3) is None


async def test_a_wire_that_the_server_closes_is_not_used_again(redis_url: str) -> None:
    connections = ConnectionPool(RedisSettings(url=redis_url))
    first = await connections.exchange(("CLIENT", "ID"))
    assert await connections.exchange(("CLIENT", "ID")) == first
    other = await Connector(RedisSettings(url=redis_url)).wire()
    assert await other.command(("CLIENT", "KILL", "ID", first), 5) == 1
    other.close()

    async def replaced() -> bool:
        try:
            return bool(await connections.exchange(("CLIENT", "ID")) != first)
        except errors.ConnectionError:
            return False

    await eventually(replaced)
    await connections.close()


async def test_what_waits_is_told_when_the_server_dies(own_redis: Start) -> None:
    server = own_redis()
    wire = await Connector(RedisSettings(url=server.url)).wire()
    waiting = asyncio.create_task(wire.command(("BLPOP", "nothing", 0), 30))
    await asyncio.sleep(0.02)
    server.kill()
    with pytest.raises(errors.ConnectionError):
        await asyncio.wait_for(waiting, 10)


async def test_a_server_that_is_no_redis_is_refused() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(errors.ConnectionError, match="does not follow the Redis protocol"):
        await Connector(RedisSettings(url=f"redis://127.0.0.1:{port}", connect_timeout_s=5)).wire()
    server.close()


async def test_a_server_that_is_not_reached_is_named() -> None:
    with pytest.raises(OSError, match=r"^nowhere\.invalid:6379: \[Errno "):
        await Connector(RedisSettings(url="redis://nowhere.invalid:6379")).wire()
    with pytest.raises(OSError, match=r"^/nowhere/redis\.sock: \[Errno 2\] No such file"):
        await Connector(RedisSettings(url="unix:///nowhere/redis.sock")).wire()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    silent = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    with pytest.raises(TimeoutError, match=f"^127.0.0.1:{port}: no reply within 0.1 s$"):
        await Connector(
            RedisSettings(url=f"redis://127.0.0.1:{port}", connect_timeout_s=0.1)
        ).wire()
    silent.close()


async def test_the_url_says_who_it_is_and_where(own_redis: Start) -> None:
    server = own_redis()
    with closing(server.client()) as client:
        client.config_set("requirepass", "secret")
    place = server.url.partition("//")[2].rpartition("/")[0]
    wire = await Connector(RedisSettings(url=f"redis://:secret@{place}/2")).wire()
    told = await wire.command(("CLIENT", "INFO"), 5)
    assert b" db=2 " in told
    assert b" name=chancy " in told
    wire.close()
    with pytest.raises(errors.AuthenticationError):
        await Connector(RedisSettings(url=f"redis://:wrong@{place}/2")).wire()
    with pytest.raises(errors.AuthenticationError):
        await Connector(RedisSettings(url=f"redis://{place}")).wire()


async def test_callers_at_one_moment_do_not_mix_their_answers(bench: Bench) -> None:
    # Who waits behind all others on a busy machine has the usual time for an answer.
    ids = await bench.push(*(prepared(arguments=f'{{"n": {n}}}') for n in range(200)))

    async def read(n: int) -> None:
        if n % 7 == 0:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await bench.job(ids[n])
        else:
            assert (await bench.job(ids[n])).arguments == {"n": n}

    await asyncio.gather(*map(read, range(200)))
