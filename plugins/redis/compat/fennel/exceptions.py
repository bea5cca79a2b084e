"""The exceptions of fennel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chancy.errors import ChancyError as FennelException
from chancy.errors import JobError
from chancy.errors import UnknownFunction as UnknownTask
from chancy.errors import WaitTimeout as Timeout

__all__ = [
    "FennelException",
    "JobNotFound",
    "ResultsDisabled",
    "TaskFailed",
    "Timeout",
    "UnknownTask",
]


class TaskFailed(JobError):
    """The task failed permanently.

    :ivar original_type: the name of the exception's type, without its module.
    :ivar original_args: the arguments of the exception, at most ten; values that JSON cannot
        represent are strings.
    """

    def __init__(self, original_type: str, original_args: Sequence[Any]) -> None:
        super().__init__(f"{original_type}: {', '.join(map(str, original_args))}")
        self.original_type = original_type
        self.original_args = list(original_args)


class ResultsDisabled(JobError):
    """The application does not keep results."""


class JobNotFound(JobError):
    """No job has this id: it never existed, or is no longer kept."""
