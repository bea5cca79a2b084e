"""How Redis is reached: settings, errors, scripts, keys, and connections."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from functools import partial

import pytest
import redis.exceptions as redis_errors
from redis import exceptions as errors

from chancy.errors import BrokerUnavailable, ConfigurationError, StatementFailed
from chancy.plugins.redis import RedisPlugin, RedisSettings
from chancy.plugins.redis.transport import pool
from chancy.plugins.redis.transport.connection import Connector, RedisConnection
from chancy.plugins.redis.transport.location import location_of
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.scripts import ScriptCall
from chancy.plugins.redis.transport.translation import broker_error
from chancy.testing.conformance.bench import Bench, prepared
from tests.support.redis_commands import command_sync
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually, gives

Own = Callable[..., RedisServer]
KEYS = [f"{{t:{name}:0}}" for name in ("a", "b", "c", "d")]


def append(key: str) -> ScriptCall:
    keys = (f"{key}:log", f"{key}:stat")
    return ScriptCall("streams.send", keys, (100, "block", "count", 0, 2, 1, "a", 1))


@pytest.fixture(params=["alone", "cluster"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[RedisClient]:
    clustered = request.param == "cluster"
    url = request.getfixturevalue("redis_cluster" if clustered else "redis_url")
    made = RedisClient(RedisSettings(url=url, cluster=clustered))
    yield made
    await made.close()


async def test_scripts_are_sent_where_they_are_missing(client: RedisClient) -> None:
    for length in range(1, 6, 2):
        for key in KEYS:
            await client.raw(key, "SCRIPT", "FLUSH")
        call = append(KEYS[0])
        assert await client.run(call.script, call.keys, call.args) == 1
        broken = ScriptCall("streams.send", call.keys)
        replies = await client.run_many([append(KEYS[0]), append(KEYS[1]), broken])
        assert replies[:-1] == [1, 1]
        assert isinstance(replies[-1], StatementFailed)
        assert await client.command("XLEN", call.keys[0]) == length + 1


async def test_statements_that_may_have_run_are_not_repeated(own_redis: Own) -> None:
    server = own_redis()
    with closing(server.client()) as direct:
        client = RedisClient(RedisSettings(url=server.url))
        assert await client.run_many([append("{n}")]) == [1]
        server.freeze()

        async def thaw() -> None:
            # In the loop of the timeout, so that it comes after it.
            await asyncio.sleep(0.8)
            server.thaw()

        thawing = asyncio.create_task(thaw())
        try:
            [reply] = await client.run_many([append("{n}")], timeout_s=0.5)
        except BrokerUnavailable as error:
            reply = error
        await thawing
        assert isinstance(reply, BrokerUnavailable)
        assert isinstance(reply.__cause__, redis_errors.TimeoutError)
        assert command_sync(direct, "XLEN", "{n}:log") == 2
        await client.close()


async def test_a_server_that_went_away_is_unavailable(own_redis: Own) -> None:
    server = own_redis()
    client = RedisClient(RedisSettings(url=server.url))
    assert await client.command("PING") is True
    server.freeze()
    with pytest.raises(BrokerUnavailable):
        await client.command("PING", timeout_s=0.2)
    server.thaw()
    assert await client.command("ECHO", "new") == b"new", "not by the connection of before"
    server.kill()
    with pytest.raises(BrokerUnavailable):
        await client.command("PING")
    server.start()
    assert await client.command("PING") is True
    await client.close()


async def test_a_forked_process_has_a_background_loop_of_its_own(redis_url: str) -> None:
    client = RedisClient(RedisSettings(url=redis_url))
    call = append("a")
    run = partial(client.run, call.script, call.keys, call.args)
    assert await asyncio.to_thread(client.background.run, run()) == 1
    child = os.fork()
    if not child:
        client.background.run(run())
        os._exit(0)
    await asyncio.to_thread(os.waitpid, child, 0)
    assert await asyncio.to_thread(client.background.run, run()) == 1
    assert await client.command("XLEN", "a:log") == 3
    await client.close()


#: How Redis 6 begins to tell of an error within a script.
_WITHIN = "Error running script (call to f_d04b): @user_script:102: @user_script: 102: "


@pytest.mark.parametrize(
    "error",
    [
        redis_errors.ConnectionError("gone"),
        redis_errors.TimeoutError("late"),
        redis_errors.BusyLoadingError("LOADING"),
        redis_errors.ReadOnlyError("READONLY"),
        redis_errors.MovedError("1 127.0.0.1:1"),
        redis_errors.AskError("1 127.0.0.1:1"),
        redis_errors.ClusterDownError("CLUSTERDOWN"),
        redis_errors.TryAgainError("TRYAGAIN"),
        redis_errors.MasterDownError("MASTERDOWN"),
        redis_errors.ResponseError("UNBLOCKED force unblock"),
        redis_errors.ResponseError(f"{_WITHIN}-READONLY You can't write against a replica."),
        OSError("no route"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_that_pass_are_distinguished(error: Exception) -> None:
    assert isinstance(broker_error(error), BrokerUnavailable)


@pytest.mark.parametrize(
    ("error", "words", "retryable"),
    [
        (
            redis_errors.OutOfMemoryError("command not allowed"),
            "Redis is full: OutOfMemoryError: command",
            True,
        ),
        (
            redis_errors.AuthenticationError("WRONGPASS"),
            "Redis refused access: AuthenticationError: WRONGPASS",
            False,
        ),
        (redis_errors.ResponseError("ACL failure in script: User u"), "refused access: ", False),
        (
            redis_errors.ResponseError("The user executing the script can't run this"),
            "refused access: ",
            False,
        ),
        (
            redis_errors.ResponseError(f"{_WITHIN}The user executing the script can't publish"),
            "refused access: ",
            False,
        ),
        (redis_errors.ResponseError("WRONGTYPE"), "Redis refused a command: ", False),
        (redis_errors.ResponseError(f"{_WITHIN}-WRONGTYPE Operation"), "WRONGTYPE", False),
        (redis_errors.ResponseError(f"{_WITHIN}-OOM command not allowed"), "Redis is full: ", True),
        (redis_errors.ResponseError(f"{_WITHIN}-NOREPLICAS Not enough"), "NOREPLICAS", True),
    ],
)
def test_refusals_are_distinguished_in_the_words_of_redis(
    error: Exception, words: str, retryable: bool
) -> None:
    found = broker_error(error)
    assert isinstance(found, StatementFailed)
    assert words in str(found)
    # Codes of SQL are none of Redis'.
    assert (found.sqlstate, found.retryable) == ("", retryable)
    assert "SQLSTATE" not in str(found)
    assert broker_error(ValueError("ours")) is None


@pytest.mark.parametrize(
    "values",
    [
        {"url": "http://host"},
        {"url": "redis://host:port"},
        {"url": "unix://"},
        {"cluster": True, "url": "redis://host/3"},
        {"cluster": True, "url": "unix:///a"},
        {"sentinel": "shop", "url": "unix:///a"},
        {"sentinel": "shop", "cluster": True},
        {"prefix": "a{b}"},
        {"timeout_s": 0},
        {"timeout_s": float("inf")},
        {"max_connections": 1},
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="RedisPlugin"):
        RedisPlugin(**values)  # type: ignore[arg-type]


def test_a_password_is_not_shown() -> None:
    settings = RedisPlugin(url="redis://me:secret@host:1/2").settings
    assert settings.shown_url == "redis://…@host:1/2"
    assert "secret" not in repr(settings)
    with pytest.raises(ConfigurationError) as caught:
        RedisPlugin(url="redis://me:secret@host:port/2")
    assert "secret" not in str(caught.value)


Start = Callable[..., RedisServer]


def connector(url: str, timeout_s: float = 5.0) -> Connector:
    return Connector(location_of(RedisSettings(url=url)), timeout_s=timeout_s)


@pytest.fixture
async def wire(redis_url: str) -> AsyncIterator[RedisConnection]:
    made = await connector(redis_url).wire()
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


@pytest.fixture
async def other(redis_url: str) -> AsyncIterator[RedisConnection]:
    made = await connector(redis_url).wire()
    yield made
    made.close()


async def test_the_reply_to_a_cancelled_call_is_not_that_of_the_next(
    wire: RedisConnection, other: RedisConnection
) -> None:
    task = asyncio.create_task(wire.command(("BLPOP", "list", 0), 60))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    following = asyncio.create_task(wire.command(("PING",), 30))
    await other.command(("LPUSH", "list", "a"), 30)
    assert await following == b"PONG"


async def test_a_late_reply_fails_its_call_alone_and_ends_the_connection(
    wire: RedisConnection, other: RedisConnection
) -> None:
    late = asyncio.create_task(wire.command(("BLPOP", "list", 0), 0.05))
    following = asyncio.create_task(wire.command(("PING",), 30))
    with pytest.raises(errors.TimeoutError):
        await late
    assert wire.late
    await other.command(("LPUSH", "list", "a"), 30)
    assert await following == b"PONG"
    assert wire.ended.done()
    with pytest.raises(errors.ConnectionError):
        await wire.command(("PING",), 5)


async def test_the_timeout_is_of_each_command(
    wire: RedisConnection, other: RedisConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_s = 0.0
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: time.monotonic() + ahead_s)
    for _ in range(4):
        waiting = asyncio.create_task(wire.command(("BLPOP", "list", 0), 60))
        await asyncio.sleep(0)
        ahead_s += 40
        for _ in range(3):
            await asyncio.sleep(0)  # the timer of an earlier one may be due
        await other.command(("LPUSH", "list", "a"), 30)
        assert await waiting == [b"list", b"a"]


async def test_only_blocking_commands_have_connections_of_their_own(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "IDLE_S", 0.0)
    connections = pool.ConnectionPool(connector(redis_url), 5.0)

    async def count() -> int:
        [listed] = await connections.exchange([("CLIENT", "LIST", "TYPE", "NORMAL")])
        return len(listed.splitlines())

    await asyncio.gather(*(connections.exchange([("PING",)]) for _ in range(8)))
    assert await count() == 1
    wait = ("WAIT", 1, 60_000)
    waiting = [asyncio.create_task(connections.exchange([wait], 60.0)) for _ in range(8)]

    async def blocked() -> list[bytes]:
        [listed] = await connections.exchange([("CLIENT", "LIST")])
        waits = [one for one in listed.splitlines() if b"cmd=wait" in one]
        return [one.split()[0].partition(b"=")[2] for one in waits] if len(waits) == 8 else []

    ids = await eventually(blocked)
    assert await count() == 9
    await connections.exchange([("CLIENT", "UNBLOCK", id) for id in ids])
    await asyncio.gather(*waiting)
    await connections.exchange([("WAIT", 1, 10)])
    await eventually(lambda: gives(count(), 2))
    connections.close()


async def test_waiting_calls_fail_when_the_server_dies(own_redis: Start) -> None:
    server = own_redis()
    wire = await connector(server.url).wire()
    waiting = asyncio.create_task(wire.command(("BLPOP", "nothing", 0), 30))
    await asyncio.sleep(0.02)
    server.kill()
    with pytest.raises(errors.ConnectionError):
        await asyncio.wait_for(waiting, 25)


async def test_a_server_that_is_no_redis_is_refused() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(errors.ConnectionError, match="does not follow the Redis protocol"):
        await connector(f"redis://127.0.0.1:{port}", 5).wire()
    server.close()


async def test_a_server_that_is_not_reached_is_named() -> None:
    with pytest.raises(OSError, match=r"^nowhere\.invalid:6379: \[Errno "):
        await connector("redis://nowhere.invalid:6379").wire()
    with pytest.raises(OSError, match=r"^/nowhere/redis\.sock: \[Errno 2\] No such file"):
        await connector("unix:///nowhere/redis.sock").wire()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    silent = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    with pytest.raises(TimeoutError, match=f"^127.0.0.1:{port}: no reply within 0.1 s$"):
        await connector(f"redis://127.0.0.1:{port}", 0.1).wire()
    silent.close()


@pytest.mark.parametrize("cluster", [False, True])
async def test_close_ends_a_connection_attempt_that_no_call_waits_for(cluster: bool) -> None:
    reached, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        await reader.read(-1)
        writer.close()
        ended.set()

    silent = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    client = RedisClient(RedisSettings(url=f"redis://127.0.0.1:{port}", cluster=cluster))
    call = asyncio.create_task(client.command("PING"))
    await reached.wait()
    call.cancel()
    await asyncio.wait([call])
    await client.close()
    assert "chancy redis connect" not in {task.get_name() for task in asyncio.all_tasks()}
    await asyncio.wait_for(ended.wait(), 10)
    silent.close()


async def test_a_call_that_waits_for_a_connection_names_its_timeout() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    silent = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    client = RedisClient(RedisSettings(url=f"redis://127.0.0.1:{port}", timeout_s=0.1))
    with pytest.raises(BrokerUnavailable, match=r"no connection within 0\.1 s"):
        await client.command("PING")
    await client.close()
    silent.close()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_loops_that_ended_without_close_keep_no_connections(own_redis: Own) -> None:
    client = RedisClient(RedisSettings(url=own_redis().url))

    async def ping() -> None:
        assert await client.command("PING") is True

    for _ in range(5):
        await asyncio.to_thread(asyncio.run, ping())

    async def one() -> bool:
        gc.collect()
        listed: bytes = await client.raw("", "CLIENT", "LIST", "TYPE", "NORMAL")
        return listed.count(b"name=chancy") == 1

    await eventually(one)
    await client.close()


async def test_the_url_names_user_and_host(own_redis: Start) -> None:
    server = own_redis()
    with closing(server.client()) as client:
        client.config_set("requirepass", "secret")
    place = server.url.partition("//")[2].rpartition("/")[0]
    wire = await connector(f"redis://:secret@{place}/2").wire()
    told = await wire.command(("CLIENT", "INFO"), 5)
    assert b" db=2 " in told
    assert b" name=chancy " in told
    wire.close()
    with pytest.raises(errors.AuthenticationError):
        await connector(f"redis://:wrong@{place}/2").wire()
    with pytest.raises(errors.AuthenticationError):
        await connector(f"redis://{place}").wire()


async def test_callers_at_once_do_not_mix_their_answers(bench: Bench) -> None:
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
