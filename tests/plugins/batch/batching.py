"""Helpers for tests of batches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from chancy import Chancy, Plugin, Queue, Settlement, Worker
from chancy.broker.transaction import Transaction
from chancy.clock import Clock, SystemClock
from chancy.plugins.batch import Batch, Batches, BatchProgress, BatchReference
from chancy.plugins.batch.outcomes import BatchOutcomes
from chancy.plugins.batch.sweep import BatchSweep
from tests.plugins.batch.jobs import ran, said
from tests.plugins.workflow.running import ASYNC, SOON
from tests.support.sql import ask
from tests.support.waiting import eventually, gives

__all__ = ["ASYNC", "working"]


@asynccontextmanager
async def working(
    dsn: str, batches: Batches, *plugins: Plugin, queue: Queue = ASYNC
) -> AsyncGenerator[Chancy]:
    """An application with a worker of one queue."""
    given = [batches, SOON, *plugins]
    async with Chancy(dsn, queues=[queue], plugins=given) as chancy, Worker(chancy):
        yield chancy


class Unreporting(Batches):
    """Reports no outcomes, as a worker that was killed after it settled its jobs."""

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None: ...
    async def serve(self, runtime: Any) -> None: ...


def sweep_of(
    chancy: Chancy, keep_days: float | None = None, clock: Clock | None = None
) -> BatchSweep:
    return BatchSweep(chancy.broker, clock or SystemClock(), BatchOutcomes(), keep_days=keep_days)


async def idle(dsn: str) -> None:
    await eventually(lambda: not ask(dsn, "select id from chancy.jobs"))


async def counts(reference: BatchReference) -> tuple[int, int, int, int]:
    found = await reference.progress()
    assert isinstance(found, BatchProgress)
    return found.pending, found.succeeded, found.failed, found.cancelled


async def eventually_counts(reference: BatchReference, wanted: tuple[int, int, int, int]) -> None:
    await eventually(lambda: gives(counts(reference), wanted))


def callbacks(*, may_grow: bool = False) -> Batch:
    to = said.job("on")
    return Batch(name="b", on_success=to, on_failure=to, on_finish=to, open=may_grow)


async def called(dsn: str) -> list[str]:
    """The callbacks that ran, once nothing is left to run."""
    await eventually(lambda: not ask(dsn, "select id from chancy.jobs"))
    return sorted(one for one in ran if one.startswith("on "))


def counted(pending: int, succeeded: int, failed: int, cancelled: int) -> BatchProgress:
    return BatchProgress(pending=pending, succeeded=succeeded, failed=failed, cancelled=cancelled)
