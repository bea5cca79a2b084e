"""A job queue on Postgres: typed, async first, and made for work that must not be lost.

The names are loaded when they are first used. A child of the process executor needs few of them,
and starts in half the time (56 ms of imports instead of 127).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# The function, not the module of the same name, which is bound here once it is imported.
from chancy.job import job

if TYPE_CHECKING:
    from chancy.answers import Cancel, Retry, Snooze
    from chancy.app import Chancy
    from chancy.attempt import Claim, Failure, Outcome, Settlement
    from chancy.broker import Cancellation, JobFilter, QueueCounts, WorkerRecord
    from chancy.context import JobContext, current_job
    from chancy.errors import (
        BrokerError,
        BrokerUnavailable,
        ChancyError,
        ConfigurationError,
        DuplicateJob,
        Interrupted,
        InvalidAnswer,
        InvalidArguments,
        InvalidStep,
        JobCancelled,
        JobError,
        JobFailed,
        LeaseLost,
        NoCurrentJob,
        NotOpen,
        PayloadTooLarge,
        PushError,
        SchemaMismatch,
        StatementFailed,
        UnknownFunction,
        UnsupportedLimit,
        WaitTimeout,
    )
    from chancy.job import Job, QueuedJob
    from chancy.limits import Limit
    from chancy.options import AsyncOptions, ProcessOptions, ThreadOptions
    from chancy.plugin import Plugin, Runtime
    from chancy.queue import Queue
    from chancy.reference import (
        Reference,
        References,
        as_completed,
        gather,
        sync_as_completed,
        sync_gather,
    )
    from chancy.states import State
    from chancy.unique import Unique
    from chancy.worker.worker import Worker

__all__ = [
    "AsyncOptions",
    "BrokerError",
    "BrokerUnavailable",
    "Cancel",
    "Cancellation",
    "Chancy",
    "ChancyError",
    "Claim",
    "ConfigurationError",
    "DuplicateJob",
    "Failure",
    "Interrupted",
    "InvalidAnswer",
    "InvalidArguments",
    "InvalidStep",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobError",
    "JobFailed",
    "JobFilter",
    "LeaseLost",
    "Limit",
    "NoCurrentJob",
    "NotOpen",
    "Outcome",
    "PayloadTooLarge",
    "Plugin",
    "ProcessOptions",
    "PushError",
    "Queue",
    "QueueCounts",
    "QueuedJob",
    "Reference",
    "References",
    "Retry",
    "Runtime",
    "SchemaMismatch",
    "Settlement",
    "Snooze",
    "State",
    "StatementFailed",
    "ThreadOptions",
    "Unique",
    "UnknownFunction",
    "UnsupportedLimit",
    "WaitTimeout",
    "Worker",
    "WorkerRecord",
    "as_completed",
    "current_job",
    "gather",
    "job",
    "sync_as_completed",
    "sync_gather",
]

_MODULES = {
    "AsyncOptions": "chancy.options",
    "BrokerError": "chancy.errors",
    "BrokerUnavailable": "chancy.errors",
    "Cancel": "chancy.answers",
    "Cancellation": "chancy.broker",
    "Chancy": "chancy.app",
    "ChancyError": "chancy.errors",
    "Claim": "chancy.attempt",
    "ConfigurationError": "chancy.errors",
    "DuplicateJob": "chancy.errors",
    "Failure": "chancy.attempt",
    "Interrupted": "chancy.errors",
    "InvalidAnswer": "chancy.errors",
    "InvalidArguments": "chancy.errors",
    "InvalidStep": "chancy.errors",
    "Job": "chancy.job",
    "JobCancelled": "chancy.errors",
    "JobContext": "chancy.context",
    "JobError": "chancy.errors",
    "JobFailed": "chancy.errors",
    "JobFilter": "chancy.broker",
    "LeaseLost": "chancy.errors",
    "Limit": "chancy.limits",
    "NoCurrentJob": "chancy.errors",
    "NotOpen": "chancy.errors",
    "Outcome": "chancy.attempt",
    "PayloadTooLarge": "chancy.errors",
    "Plugin": "chancy.plugin",
    "ProcessOptions": "chancy.options",
    "PushError": "chancy.errors",
    "Queue": "chancy.queue",
    "QueueCounts": "chancy.broker",
    "QueuedJob": "chancy.job",
    "Reference": "chancy.reference",
    "References": "chancy.reference",
    "Retry": "chancy.answers",
    "Runtime": "chancy.plugin",
    "SchemaMismatch": "chancy.errors",
    "Settlement": "chancy.attempt",
    "Snooze": "chancy.answers",
    "State": "chancy.states",
    "StatementFailed": "chancy.errors",
    "ThreadOptions": "chancy.options",
    "Unique": "chancy.unique",
    "UnknownFunction": "chancy.errors",
    "UnsupportedLimit": "chancy.errors",
    "WaitTimeout": "chancy.errors",
    "Worker": "chancy.worker.worker",
    "WorkerRecord": "chancy.broker",
    "as_completed": "chancy.reference",
    "current_job": "chancy.context",
    "gather": "chancy.reference",
    "sync_as_completed": "chancy.reference",
    "sync_gather": "chancy.reference",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'chancy' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
