"""How Redis is reached: settings, errors, scripts and keys."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import redis.exceptions as redis_errors
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from chancy.errors import BrokerUnavailable, ConfigurationError, StatementFailed
from chancy.plugins.redis import RedisPlugin, RedisSettings
from chancy.plugins.redis.keys import Keys
from chancy.plugins.redis.transport.clients import (
    Client,
    broker_error,
    command_sync,
    connect,
    connect_sync,
    translated,
)
from chancy.plugins.redis.transport.scripts import Script, ScriptCall, run_all_sync
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually, eventually_sync

ECHO = Script("echo", "redis.call('set', KEYS[1], ARGV[1]) return {KEYS[1], ARGV[1]}")
KEYS = [Keys("t:").tag(name) for name in ("a", "b", "c", "d")]


@pytest.fixture(params=["alone", "cluster"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    clustered = request.param == "cluster"
    url = request.getfixturevalue("redis_cluster" if clustered else "redis_url")
    made: Any = connect_sync(RedisSettings(url=url, cluster=clustered))
    yield made
    if clustered:
        made.disconnect_connection_pools()
    made.close()


def flush_scripts(client: Client) -> None:
    clustered = isinstance(client, RedisCluster)
    command_sync(client, "SCRIPT FLUSH", **({"target_nodes": "primaries"} if clustered else {}))


def test_a_script_is_sent_where_it_is_missing(client: Client) -> None:
    for _ in range(2):
        flush_scripts(client)
        for key in KEYS:
            assert ECHO.run_sync(client, [key], ["x"]) == [key.encode(), b"x"]


def test_scripts_go_together_also_where_they_are_missing(client: Client) -> None:
    broken = Script("broken", "return redis.call('incr', KEYS[1])")
    calls = [ScriptCall(ECHO, [key], [key]) for key in KEYS]
    for _ in range(2):
        flush_scripts(client)
        answers = run_all_sync(client, [*calls, ScriptCall(broken, [KEYS[0]])])
        assert answers[:-1] == [[key.encode()] * 2 for key in KEYS]
        assert isinstance(answers[-1], redis_errors.ResponseError)


def test_what_may_have_run_is_not_sent_again(own_redis: Callable[..., RedisServer]) -> None:
    """The pipeline of a cluster's client would, however it is told to retry."""
    server = own_redis(cluster_enabled="yes")
    with closing(server.client()) as direct:
        command_sync(direct, "CLUSTER ADDSLOTS", *range(16384))
        eventually_sync(
            lambda: "'cluster_state': 'ok'" in str(command_sync(direct, "CLUSTER INFO"))
        )
        settings = RedisSettings(url=server.url, cluster=True, timeout_s=0.5)
        client: Any = connect_sync(settings, retry=Retry(NoBackoff(), 0))
        count = Script("count", "return redis.call('incr', KEYS[1])")
        assert run_all_sync(client, [ScriptCall(count, ["n"])]) == [1]
        server.freeze()
        timer = threading.Timer(0.8, server.thaw)
        timer.start()
        (answer,) = run_all_sync(client, [ScriptCall(count, ["n"])])
        timer.join()
        assert isinstance(answer, redis_errors.TimeoutError)
        assert command_sync(direct, "GET", "n") == b"2"
        client.disconnect_connection_pools()
        client.close()


async def test_a_server_that_went_away_is_unavailable(
    own_redis: Callable[..., RedisServer],
) -> None:
    server = own_redis()
    client = connect(RedisSettings(url=server.url, timeout_s=0.2))
    try:
        assert await client.ping()
        server.freeze()
        with pytest.raises(BrokerUnavailable), translated():
            await client.ping()
        server.thaw()
        server.kill()
        with pytest.raises(BrokerUnavailable), translated():
            await client.ping()
        server.start()

        async def answers() -> bool:
            with translated():
                return bool(await client.ping())

        await eventually(answers)
    finally:
        await client.aclose()


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
def test_errors_that_pass_are_told_apart(error: Exception) -> None:
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
def test_refusals_are_told_apart_in_the_words_of_redis(
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


def test_keys_of_a_shard_share_their_tag() -> None:
    assert Keys("chancy:").tag("mail", 2) == "{chancy:mail:2}"
    assert Keys("chancy:").plain("workers") == "chancy:workers"
