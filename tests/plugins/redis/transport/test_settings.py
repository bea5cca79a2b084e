"""How Redis is reached: settings, errors, scripts and keys."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from functools import partial

import pytest
import redis.exceptions as redis_errors

from chancy.errors import BrokerUnavailable, ConfigurationError, StatementFailed
from chancy.plugins.redis import RedisPlugin, RedisSettings
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.scripts import ScriptCall
from chancy.plugins.redis.transport.translation import broker_error
from tests.support.redis_commands import command_sync
from tests.support.redis_fixtures import RedisServer

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
        client = RedisClient(RedisSettings(url=server.url, timeout_s=0.5))
        assert await client.run_many([append("{n}")]) == [1]
        server.freeze()
        timer = threading.Timer(0.8, server.thaw)
        timer.start()
        try:
            [reply] = await client.run_many([append("{n}")])
        except BrokerUnavailable as error:
            reply = error
        await asyncio.to_thread(timer.join)
        assert isinstance(reply, BrokerUnavailable)
        assert isinstance(reply.__cause__, redis_errors.TimeoutError)
        assert command_sync(direct, "XLEN", "{n}:log") == 2
        await client.close()


async def test_a_server_that_went_away_is_unavailable(own_redis: Own) -> None:
    server = own_redis()
    client = RedisClient(RedisSettings(url=server.url, timeout_s=0.2))
    assert await client.command("PING") is True
    server.freeze()
    with pytest.raises(BrokerUnavailable):
        await client.command("PING")
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
