"""A job queue on Postgres: typed, async first, and made for work that must not be lost."""

from chancy.app import Chancy
from chancy.attempt import Claim, Failure, Outcome, Settlement
from chancy.broker import Cancellation, JobFilter, QueueCounts, WorkerRecord
from chancy.errors import (
    BrokerError,
    BrokerUnavailable,
    ChancyError,
    ConfigurationError,
    InvalidArguments,
    JobError,
    LeaseLost,
    PayloadTooLarge,
    PushError,
    SchemaMismatch,
    StatementFailed,
    UnknownFunction,
    WaitTimeout,
)
from chancy.job import Job, QueuedJob, job
from chancy.plugin import Plugin, Runtime
from chancy.queue import Queue
from chancy.reference import Reference, References
from chancy.states import State
from chancy.worker.worker import Worker

__all__ = [
    "BrokerError",
    "BrokerUnavailable",
    "Cancellation",
    "Chancy",
    "ChancyError",
    "Claim",
    "ConfigurationError",
    "Failure",
    "InvalidArguments",
    "Job",
    "JobError",
    "JobFilter",
    "LeaseLost",
    "Outcome",
    "PayloadTooLarge",
    "Plugin",
    "PushError",
    "Queue",
    "QueueCounts",
    "QueuedJob",
    "Reference",
    "References",
    "Runtime",
    "SchemaMismatch",
    "Settlement",
    "State",
    "StatementFailed",
    "UnknownFunction",
    "WaitTimeout",
    "Worker",
    "WorkerRecord",
    "job",
]
