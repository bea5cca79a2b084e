"""A job queue on Postgres: typed, async first, and made for work that must not be lost.

Names are imported on first use. A child of the process executor needs few of them, and starts in
half the time (56 ms of imports instead of 127).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Imported eagerly: otherwise importing the package `chancy.job` would bind it to this name.
from chancy.job.definition import job

if TYPE_CHECKING:
    from chancy.app.app import Chancy
    from chancy.attempt.claim import Claim
    from chancy.attempt.control import Cancel, Retry, Snooze
    from chancy.attempt.failure import Failure
    from chancy.attempt.outcome import Outcome
    from chancy.attempt.settlement import Settlement
    from chancy.broker.values import Cancellation, JobFilter, QueueCounts, WorkerRecord
    from chancy.context.context import JobContext, current_job
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
    from chancy.job.definition import Job, QueuedJob
    from chancy.job.limits import Limit
    from chancy.job.unique import Unique
    from chancy.plugin.plugin import Plugin
    from chancy.plugin.runtime import Runtime
    from chancy.queue.executor_options import AsyncOptions, ProcessOptions, ThreadOptions
    from chancy.queue.queue import Queue
    from chancy.results.reference import (
        Reference,
        References,
        as_completed,
        gather,
        sync_as_completed,
        sync_gather,
    )
    from chancy.states import State
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
    "AsyncOptions": "chancy.queue.executor_options",
    "BrokerError": "chancy.errors",
    "BrokerUnavailable": "chancy.errors",
    "Cancel": "chancy.attempt.control",
    "Cancellation": "chancy.broker.values",
    "Chancy": "chancy.app.app",
    "ChancyError": "chancy.errors",
    "Claim": "chancy.attempt.claim",
    "ConfigurationError": "chancy.errors",
    "DuplicateJob": "chancy.errors",
    "Failure": "chancy.attempt.failure",
    "Interrupted": "chancy.errors",
    "InvalidAnswer": "chancy.errors",
    "InvalidArguments": "chancy.errors",
    "InvalidStep": "chancy.errors",
    "Job": "chancy.job.definition",
    "JobCancelled": "chancy.errors",
    "JobContext": "chancy.context.context",
    "JobError": "chancy.errors",
    "JobFailed": "chancy.errors",
    "JobFilter": "chancy.broker.values",
    "LeaseLost": "chancy.errors",
    "Limit": "chancy.job.limits",
    "NoCurrentJob": "chancy.errors",
    "NotOpen": "chancy.errors",
    "Outcome": "chancy.attempt.outcome",
    "PayloadTooLarge": "chancy.errors",
    "Plugin": "chancy.plugin.plugin",
    "ProcessOptions": "chancy.queue.executor_options",
    "PushError": "chancy.errors",
    "Queue": "chancy.queue.queue",
    "QueueCounts": "chancy.broker.values",
    "QueuedJob": "chancy.job.definition",
    "Reference": "chancy.results.reference",
    "References": "chancy.results.reference",
    "Retry": "chancy.attempt.control",
    "Runtime": "chancy.plugin.runtime",
    "SchemaMismatch": "chancy.errors",
    "Settlement": "chancy.attempt.settlement",
    "Snooze": "chancy.attempt.control",
    "State": "chancy.states",
    "StatementFailed": "chancy.errors",
    "ThreadOptions": "chancy.queue.executor_options",
    "Unique": "chancy.job.unique",
    "UnknownFunction": "chancy.errors",
    "UnsupportedLimit": "chancy.errors",
    "WaitTimeout": "chancy.errors",
    "Worker": "chancy.worker.worker",
    "WorkerRecord": "chancy.broker.values",
    "as_completed": "chancy.results.reference",
    "current_job": "chancy.context.context",
    "gather": "chancy.results.reference",
    "sync_as_completed": "chancy.results.reference",
    "sync_gather": "chancy.results.reference",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'chancy' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
