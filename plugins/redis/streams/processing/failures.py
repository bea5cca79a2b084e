"""Failures of processors."""

from __future__ import annotations

from chancy.attempt.failure import Failure

#: Maximum characters of an error that are stored.
_MOST_ERROR = 2_000


class ChildDied(Exception):
    """The process of a partition ended without reporting a result."""


class ChildFailed(Exception):
    """The function failed in the process of a partition; described by its own error."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.types[0].rpartition('.')[2]}: {failure.message}")
        self.type = failure.types[0]
        self.add_note(failure.trace)


def described(error: BaseException) -> str:
    """Return type and message of an error, as stored in Redis."""
    try:
        text = str(error) if isinstance(error, ChildFailed) else f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    return text[:_MOST_ERROR]


def qualified(error: BaseException) -> str:
    """Return `described` with the module of the type, as dead letters of jobs have it."""
    kind = type(error)
    name = (
        error.type if isinstance(error, ChildFailed) else f"{kind.__module__}.{kind.__qualname__}"
    )
    _, colon, message = described(error).partition(": ")
    return f"{name}{colon}{message}"[:_MOST_ERROR]


def contained(error: BaseException, by: str) -> Exception:
    """Return the error, or a RuntimeError if it would end the worker's loop or be refused by it.

    :param by: the code that raised it, such as ``the processor``.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    failure = RuntimeError(f"{by} raised {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
