"""Errors of Redis as errors of brokers."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

from redis import exceptions as errors

from chancy.errors import BrokerError, BrokerUnavailable, StatementFailed

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
#: What Valkey and Redis say if a script of the user may not run a command, or use a key or channel.
_REFUSED_WORDS = ("ACL failure in script", "The user executing the script can't")
#: Prefixes of error replies that have no exception class of their own.
_AWAY_WORDS = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "UNBLOCKED", "BUSY ")

_IN_SCRIPT = re.compile(r"Error running script .*?: -([A-Z]+ .*)", re.DOTALL)


def broker_error(error: Exception) -> BrokerError | None:
    """The broker error for an error of Redis; None if it is not one."""
    if isinstance(error, BrokerError):
        return error
    text, reply = f"{type(error).__name__}: {error}", _error_reply(error)
    if _refuses_access(error):
        return StatementFailed(f"Redis refused access: {text}")
    if isinstance(error, _AWAY) or reply.startswith(_AWAY_WORDS):
        return BrokerUnavailable(f"Redis is unavailable: {text}")
    if isinstance(error, errors.OutOfMemoryError) or reply.startswith("OOM "):
        # Temporary: scripts that only remove or finish jobs still run.
        return StatementFailed(f"Redis is full: {text}", passing=True)
    if isinstance(error, errors.RedisError):
        passing = reply.startswith(("MISCONF", "NOREPLICAS"))
        return StatementFailed(f"Redis refused a command: {text}", passing=passing)
    return None


def access_refused(error: BrokerError) -> bool:
    """Whether the server refused access: the command may be fine, and its user is not."""
    return _refuses_access(error.__cause__)


def _refuses_access(error: BaseException | None) -> bool:
    # Redis 6 puts where the script failed before the words, later versions put it after them.
    return isinstance(error, _REFUSED) or any(words in str(error) for words in _REFUSED_WORDS)


def _error_reply(error: Exception) -> str:
    """The error reply of the server; Redis 6 puts an error within a script at its end."""
    text = str(error)
    within = _IN_SCRIPT.match(text)
    return within[1] if within else text


@contextmanager
def translated() -> Generator[None]:
    """Raise errors of Redis as broker errors.

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
