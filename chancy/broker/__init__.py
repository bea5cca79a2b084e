"""The contract that every broker, a store of jobs, implements."""

from __future__ import annotations

from chancy.broker.contract import Broker, Heartbeat
from chancy.broker.optional import SqlClaims, SqlStore
from chancy.broker.transaction import Transaction
from chancy.broker.values import (
    Cancellation,
    Capability,
    JobFilter,
    PreparedJob,
    Promotion,
    QueueCounts,
    QueuePosition,
    WorkerRecord,
)

__all__ = [
    "Broker",
    "Cancellation",
    "Capability",
    "Heartbeat",
    "JobFilter",
    "PreparedJob",
    "Promotion",
    "QueueCounts",
    "QueuePosition",
    "SqlClaims",
    "SqlStore",
    "Transaction",
    "WorkerRecord",
]
