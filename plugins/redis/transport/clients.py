"""Clients of redis-py, made from settings, and what their errors mean."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from redis import Redis, RedisCluster
from redis import exceptions as errors
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from chancy.errors import BrokerError, BrokerUnavailable, ConfigurationError, StatementFailed
from chancy.plugins.redis.settings import RedisSettings

Client = Redis | RedisCluster
AsyncClient = AsyncRedis | AsyncRedisCluster

#: Errors after which the same call may succeed, on this server or on the one that follows it.
#: Redirections too: the client follows them, unless the cluster is in motion.
_AWAY = (
    errors.ConnectionError,
    errors.TimeoutError,
    errors.BusyLoadingError,
    errors.ReadOnlyError,
    errors.MovedError,
    errors.AskError,
    errors.ClusterDownError,
    errors.ClusterError,
    errors.TryAgainError,
    errors.MasterDownError,
    errors.InvalidResponse,
    OSError,
)
_REFUSED = (errors.AuthenticationError, errors.AuthorizationError, errors.NoPermissionError)
#: What a server says in an answer that has no class of its own.
_AWAY_WORDS = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "UNBLOCKED", "BUSY ")

_IN_SCRIPT = re.compile(r"Error running script .*?: -([A-Z]+ .*)", re.DOTALL)


def connect(settings: RedisSettings, **more: Any) -> AsyncClient:
    """An async client; it connects at the first command. Answers are bytes.

    A command is sent once: what its error leaves unknown is for the caller to know.
    """
    options = _options(settings) | more
    if settings.cluster:
        # One repetition, for a node that moved: a redirection is no answer.
        return AsyncRedisCluster.from_url(
            settings.url, retry=AsyncRetry(NoBackoff(), 1), require_full_coverage=False, **options
        )
    return AsyncRedis.from_url(
        settings.url,
        retry=AsyncRetry(NoBackoff(), 0),
        **options,
    )


def connect_sync(settings: RedisSettings, **more: Any) -> Client:
    """The same for threads: it may be shared by them."""
    options = {"retry": Retry(NoBackoff(), 1 if settings.cluster else 0)}
    options |= _options(settings) | more
    if settings.cluster:
        return RedisCluster.from_url(settings.url, require_full_coverage=False, **options)
    return Redis.from_url(settings.url, **options)


def command(client: AsyncClient, *parts: str | bytes | int | float, **options: Any) -> Any:
    """``execute_command`` with a type: an awaitable of the answer."""
    untyped: Any = client
    return untyped.execute_command(*parts, **options)


def command_sync(client: Client, *parts: str | bytes | int | float, **options: Any) -> Any:
    """The same for threads: the answer."""
    untyped: Any = client
    return untyped.execute_command(*parts, **options)


def _options(settings: RedisSettings) -> dict[str, Any]:
    return {
        "socket_connect_timeout": settings.connect_timeout_s,
        "socket_timeout": settings.timeout_s,
        "max_connections": settings.max_connections,
        "client_name": "chancy",
        "decode_responses": False,
        "protocol": 2,
    }


def broker_error(error: Exception) -> BrokerError | None:
    """What an error of the client means here; None: it is none of Redis'."""
    if isinstance(error, BrokerError):
        return error
    text, said = f"{type(error).__name__}: {error}", _said(error)
    if isinstance(error, _REFUSED):
        return StatementFailed(f"Redis refuses us: {text}")
    if isinstance(error, errors.MaxConnectionsError):
        return BrokerUnavailable(f"no connection to Redis is free: {text}; raise max_connections")
    if isinstance(error, _AWAY) or said.startswith(_AWAY_WORDS):
        return BrokerUnavailable(f"Redis is away: {text}")
    if isinstance(error, errors.RedisClusterException):
        return BrokerUnavailable(f"no node of the Redis Cluster answers as it should: {text}")
    if isinstance(error, errors.OutOfMemoryError) or said.startswith("OOM "):
        # Until there is room: what only makes jobs less goes through.
        return StatementFailed(f"Redis is full: {text}", passing=True)
    if isinstance(error, errors.RedisError):
        passing = said.startswith(("MISCONF", "NOREPLICAS"))
        return StatementFailed(f"Redis refused a command: {text}", passing=passing)
    return None


def _said(error: Exception) -> str:
    """What the server says: Redis 6 tells of an error within a script at the end of its answer."""
    text = str(error)
    within = _IN_SCRIPT.match(text)
    return within[1] if within else text


@contextmanager
def translated() -> Generator[None]:
    """Raise the errors of the client as those of a broker.

    :raises BrokerUnavailable: the connection failed or broke, the answer took too long, or the
        server is loading, moving or read-only; the outcome is unknown.
    :raises StatementFailed: the server refused the command.
    """
    try:
        yield
    except Exception as error:
        found = broker_error(error)
        if found is None or found is error:
            raise
        raise found from error


def checked(values: dict[str, Any]) -> RedisSettings:
    """Settings of these values.

    :raises ConfigurationError: one of them cannot be; the message names it and not the password.
    """
    from pydantic import ValidationError

    try:
        return RedisSettings(**values)
    except ValidationError as error:
        reasons = "; ".join(
            f"{'.'.join(map(str, each['loc'])) or 'settings'}: "
            + each["msg"].removeprefix("Value error, ")
            for each in error.errors(include_input=False)
        )
        raise ConfigurationError(f"RedisPlugin: {reasons}") from None
