"""A job queue on Postgres: typed, async first, and made for work that must not be lost.

Names are imported on first use. An executor process needs few of them, and so starts in half the
time (56 ms of imports instead of 127).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Imported eagerly: otherwise importing the package `chancy.job` would bind it to this name.
from chancy.job.definition import job

if TYPE_CHECKING:
    from chancy.app.app import Chancy
    from chancy.app.selection import ChangedJobs, JobSelection, SelectedJobs
    from chancy.attempt.claim import Claim
    from chancy.attempt.control import Cancel, RateLimited, Retry, Snooze
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
        ImportTimeout,
        Interrupted,
        InvalidAnswer,
        InvalidArguments,
        InvalidCheckpoint,
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
    from chancy.queue.executor_options import (
        AsyncOptions,
        DaskOptions,
        ProcessOptions,
        RayOptions,
        ThreadOptions,
    )
    from chancy.queue.queue import Queue
    from chancy.queue.rules import FairShare, GlobalConcurrency, RateLimit, Sequential
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
    "ChangedJobs",
    "Claim",
    "ConfigurationError",
    "DaskOptions",
    "DuplicateJob",
    "Failure",
    "FairShare",
    "GlobalConcurrency",
    "ImportTimeout",
    "Interrupted",
    "InvalidAnswer",
    "InvalidArguments",
    "InvalidCheckpoint",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobError",
    "JobFailed",
    "JobFilter",
    "JobSelection",
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
    "RateLimit",
    "RateLimited",
    "RayOptions",
    "Reference",
    "References",
    "Retry",
    "Runtime",
    "SchemaMismatch",
    "SelectedJobs",
    "Sequential",
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

#: The names of each module.
_NAMES = {
    "app.app": "Chancy",
    "app.selection": "ChangedJobs JobSelection SelectedJobs",
    "attempt.claim": "Claim",
    "attempt.control": "Cancel RateLimited Retry Snooze",
    "attempt.failure": "Failure",
    "attempt.outcome": "Outcome",
    "attempt.settlement": "Settlement",
    "broker.values": "Cancellation JobFilter QueueCounts WorkerRecord",
    "context.context": "JobContext current_job",
    "errors": (
        "BrokerError BrokerUnavailable ChancyError ConfigurationError DuplicateJob "
        "ImportTimeout Interrupted InvalidAnswer InvalidArguments InvalidCheckpoint "
        "JobCancelled JobError JobFailed LeaseLost NoCurrentJob NotOpen PayloadTooLarge "
        "PushError SchemaMismatch StatementFailed UnknownFunction UnsupportedLimit "
        "WaitTimeout"
    ),
    "job.definition": "Job QueuedJob",
    "job.limits": "Limit",
    "job.unique": "Unique",
    "plugin.plugin": "Plugin",
    "plugin.runtime": "Runtime",
    "queue.executor_options": "AsyncOptions DaskOptions ProcessOptions RayOptions ThreadOptions",
    "queue.queue": "Queue",
    "queue.rules": "FairShare GlobalConcurrency RateLimit Sequential",
    "results.reference": "Reference References as_completed gather sync_as_completed sync_gather",
    "states": "State",
    "worker.worker": "Worker",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'chancy' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"chancy.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
