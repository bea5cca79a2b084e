"""redis-py clients made from settings, and the translation of their errors."""

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

#: Errors after which the same call may succeed, on this server or on its successor. Includes
#: redirections: the client follows them, unless the cluster is resharding.
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
#: Prefixes of error replies that have no exception class of their own.
_AWAY_WORDS = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "UNBLOCKED", "BUSY ")

_IN_SCRIPT = re.compile(r"Error running script .*?: -([A-Z]+ .*)", re.DOTALL)


def connect(settings: RedisSettings, **more: Any) -> AsyncClient:
    """An async client, which connects at the first command. Replies are bytes.

    A command is sent once: the caller handles errors that leave its outcome unknown.
    """
    options = _options(settings) | more
    if settings.cluster:
        # One retry, for a slot that moved: a redirected command was not run.
        return AsyncRedisCluster.from_url(
            settings.url, retry=AsyncRetry(NoBackoff(), 1), require_full_coverage=False, **options
        )
    return AsyncRedis.from_url(
        settings.url,
        retry=AsyncRetry(NoBackoff(), 0),
        **options,
    )


def connect_sync(settings: RedisSettings, **more: Any) -> Client:
    """A sync client, which threads may share; otherwise like `connect`."""
    options = {"retry": Retry(NoBackoff(), 1 if settings.cluster else 0)}
    options |= _options(settings) | more
    if settings.cluster:
        return RedisCluster.from_url(settings.url, require_full_coverage=False, **options)
    return Redis.from_url(settings.url, **options)


def command(client: AsyncClient, *parts: str | bytes | int | float, **options: Any) -> Any:
    """``execute_command`` with type hints: an awaitable of the reply."""
    untyped: Any = client
    return untyped.execute_command(*parts, **options)


def command_sync(client: Client, *parts: str | bytes | int | float, **options: Any) -> Any:
    """`command` for a sync client: the reply."""
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
    """The broker error for an error of the client; None if it is not an error of Redis."""
    if isinstance(error, BrokerError):
        return error
    text, reply = f"{type(error).__name__}: {error}", _error_reply(error)
    if isinstance(error, _REFUSED):
        return StatementFailed(f"Redis refused access: {text}")
    if isinstance(error, errors.MaxConnectionsError):
        return BrokerUnavailable(f"no connection to Redis is free: {text}; raise max_connections")
    if isinstance(error, _AWAY) or reply.startswith(_AWAY_WORDS):
        return BrokerUnavailable(f"Redis is unavailable: {text}")
    if isinstance(error, errors.RedisClusterException):
        return BrokerUnavailable(f"no node of the Redis Cluster replies as expected: {text}")
    if isinstance(error, errors.OutOfMemoryError) or reply.startswith("OOM "):
        # Temporary: scripts that only remove or finish jobs still run.
        return StatementFailed(f"Redis is full: {text}", passing=True)
    if isinstance(error, errors.RedisError):
        passing = reply.startswith(("MISCONF", "NOREPLICAS"))
        return StatementFailed(f"Redis refused a command: {text}", passing=passing)
    return None


def _error_reply(error: Exception) -> str:
    """The error reply of the server; Redis 6 puts an error within a script at its end."""
    text = str(error)
    within = _IN_SCRIPT.match(text)
    return within[1] if within else text


@contextmanager
def translated() -> Generator[None]:
    """Raise errors of the client as broker errors.

    :raises BrokerUnavailable: the connection failed or broke, the reply took too long, or the
        server is loading, resharding or read-only; the outcome is unknown.
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
    """Validated settings from values.

    :raises ConfigurationError: a value is invalid; the message names it, but not the password.
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
