"""Batches: groups of jobs, with callbacks that are pushed when they have ended."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID
from weakref import WeakValueDictionary

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.broker.transaction import Transaction
from chancy.errors import ConfigurationError
from chancy.job.definition import Job
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Application, Panel, Runtime
from chancy.plugin.tracking import PendingOutcomes
from chancy.plugins.batch.calls import BatchCalls
from chancy.plugins.batch.description import Batch
from chancy.plugins.batch.outcomes import (
    BatchJobOutcome,
    BatchOutcomes,
    ref_of,
    settle_statement,
)
from chancy.plugins.batch.pushing import Addition, BatchContext, Push, Pushing, SyncPushing
from chancy.plugins.batch.record import (
    BatchFilter,
    BatchProgress,
    BatchRecord,
    BatchState,
    CallbackRecord,
    On,
)
from chancy.plugins.batch.reference import BatchReference, BatchWaiter, waiter_for
from chancy.plugins.batch.sweep import BatchSweep
from chancy.postgres.schema.component import Migrations, RoleKind
from chancy.postgres.settle.finals import finals
from chancy.states import State
from chancy.text import shown

if TYPE_CHECKING:
    import click

__all__ = [
    "Batch",
    "BatchFilter",
    "BatchProgress",
    "BatchRecord",
    "BatchReference",
    "BatchState",
    "Batches",
    "CallbackRecord",
    "On",
]

#: Sweeps of the leader for one of a worker that does not lead.
_RARELY = 10
#: Seconds between two checks of recorded attempts, and between two deletions of old batches. On a
#: busy server a settlement may wait for seconds.
_CHECK_S, _PURGE_S = 2.0, 300.0
_SLEEP_S = 1.0


class Batches(Plugin):
    """Counts ended jobs of batches, and pushes callbacks, in the transactions that settle them.

    A service reports outcomes that a settlement could not report: the worker of the job within
    seconds, otherwise the leader; other workers sweep rarely, so a leader is not required. Install
    the plugin in every worker whose queues have jobs of batches: without it, outcomes wait for the
    sweep.

    :param keep_days: days for which ended batches are kept; None: for ever.
    :param sweep_s: seconds between two sweeps of the leader.
    :raises ConfigurationError: a setting is out of range.
    """

    def __init__(self, *, keep_days: int | None = 30, sweep_s: float = 5.0) -> None:
        if keep_days is not None and not 1 <= keep_days <= 36_500:
            raise ConfigurationError(
                f"keep_days={shown(keep_days)} must be from 1 to 36,500 days, or None for ever"
            )
        if not 0.05 <= sweep_s <= 86_400:
            raise ConfigurationError(f"sweep_s={shown(sweep_s)} must be from 0.05 s to a day")
        self.keep_days = keep_days
        self.sweep_s = sweep_s
        self._outcomes = BatchOutcomes()
        self._pending: PendingOutcomes[BatchJobOutcome] = PendingOutcomes("batches", most=100_000)
        # One for each broker, kept while a caller waits: it refers to its broker.
        self._waiters: WeakValueDictionary[Broker, BatchWaiter] = WeakValueDictionary()

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.batches"

    def migrations(self) -> Migrations | None:
        return Migrations(
            name="batches",
            package="chancy.plugins.batch.migrations",
            head="0001",
            grants={
                RoleKind.PRODUCER: {
                    "batches": "select, insert, update",
                    "batches_jobs": "select, insert",
                    "batches_shards": "select, insert, update",
                    "batches_added": "select, insert, delete",
                    "batches_callbacks": "select, insert, update",
                }
            },
            core_grants={RoleKind.PRODUCER: {"queues": "select (name, broker)"}},
        )

    def commands(self) -> Sequence[click.Command]:
        from chancy.plugins.batch.commands import batch

        return [batch]

    def panels(self) -> Sequence[Panel]:
        return [Panel(name="batches", title="Batches", rows=_panel_rows)]

    # In a worker

    def judging(self, claim: Claim, outcome: Outcome, verdict: Settlement) -> Settlement:
        # The decision stays as it is: only a claim names the batch of its job.
        if claim.meta is not None and (ref := ref_of(claim.meta)) is not None:
            self._outcomes.record(claim.id, ref)
        return verdict

    #: Including states that are not final: releasing a job that was asked to stop cancels it.
    settling_states = frozenset(State)

    def settling_concerns(self, settlement: Settlement) -> bool:
        return settlement.id in self._outcomes

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        outcomes = self._outcomes.outcomes_of(await finals(tx, batch))
        if outcomes:
            try:
                await tx.fetch(*settle_statement(tx.schema, outcomes))
            except BaseException:
                self._outcomes.mark_unreported(outcomes)
                raise
            self._outcomes.mark_reported(outcomes)

    def settled(self, batch: Sequence[Settlement]) -> None:
        self._pending.add(self._outcomes.settled(batch))

    async def serve(self, runtime: Runtime) -> None:
        broker, clock = runtime.broker, runtime.clock
        if not isinstance(broker, SqlStore):
            return
        reporting = asyncio.create_task(
            self._pending.tell(BatchCalls(broker).settle, clock), name="chancy batches"
        )
        try:
            sweep = BatchSweep(broker, clock, self._outcomes, keep_days=self.keep_days)
            await self._sweep(runtime, sweep)
        finally:
            reporting.cancel()
            await asyncio.wait([reporting])

    async def _sweep(self, runtime: Runtime, sweep: BatchSweep) -> None:
        clock = runtime.clock
        check_at = turn_at = purge_at = clock.monotonic()
        while True:
            now = clock.monotonic()
            if now >= check_at and len(self._outcomes):
                await sweep.check_recorded()
                check_at = now + _CHECK_S
            if now >= turn_at:
                await sweep.turn()
                every_s = self.sweep_s if runtime.leader.leading else _RARELY * self.sweep_s
                turn_at = now + every_s * random.uniform(0.8, 1.2)
            if now >= purge_at and runtime.leader.leading:
                await sweep.purge()
                purge_at = now + _PURGE_S
            await clock.sleep(min(_SLEEP_S, self.sweep_s))

    # For applications

    async def push(
        self,
        chancy: Pushing,
        batch: Batch,
        jobs: Iterable[Job[Any]],
        *,
        within: object | None = None,
        validate: bool = True,
    ) -> BatchReference:
        """Store a batch and its jobs, all or nothing. Without jobs, it ends at once unless open.

        :param jobs: up to 1,000,000, none of them unique; consumed 1,000 at a time.
        :param within: a connection in a transaction of the caller's, as for `Chancy.push`; roll it
            back after an error.
        :param validate: False to push functions that this process cannot import.
        :raises PushError: a job or a callback cannot be stored; names it. Nothing was written.
        """
        await Push(chancy, batch, jobs, validate=validate).push(chancy, within)
        return self.reference(chancy, batch.id)

    def sync_push(
        self,
        chancy: SyncPushing,
        batch: Batch,
        jobs: Iterable[Job[Any]],
        *,
        within: object,
        validate: bool = True,
    ) -> UUID:
        """`push` for code without an event loop, in the caller's transaction; returns the id."""
        Push(chancy, batch, jobs, validate=validate).push_sync(chancy, within)
        return batch.id

    async def add(
        self,
        chancy: Pushing,
        jobs: Iterable[Job[Any]],
        *,
        within: object | None = None,
        validate: bool = True,
    ) -> int:
        """In a running job of a batch: add jobs to that batch, open or not, and return how many.

        An attempt that has lost its lease adds nothing. Jobs that an attempt has added stay when it
        fails later, and the next attempt adds its own.

        :param within: a connection in a transaction of the caller's. Commit soon: the row of the
            job is locked until then.
        :raises PushError: the running job is in no batch, a job cannot be stored, or the batch was
            cancelled or would have over 1,000,000 jobs. Nothing was written; roll back a
            transaction of your own.
        :raises LeaseLost: another worker has the job, or it has ended.
        """
        here = BatchContext.current()
        addition = Addition(chancy, here.batch, here, jobs)
        return await addition.add(chancy, within, validate=validate)

    def sync_add(
        self,
        chancy: SyncPushing,
        jobs: Iterable[Job[Any]],
        *,
        within: object,
        validate: bool = True,
    ) -> int:
        """`add` for plain functions, in a transaction of the caller's."""
        here = BatchContext.current()
        addition = Addition(chancy, here.batch, here, jobs)
        return addition.add_sync(chancy, within, validate=validate)

    def reference(self, chancy: Pushing, id: UUID) -> BatchReference:
        """A handle to a batch by its id. Raises `TypeError` if the id is not a `UUID`."""

        def waiter() -> BatchWaiter:
            found = self._waiters.get(chancy.broker)
            if found is None:
                found = self._waiters[chancy.broker] = waiter_for(chancy.broker, chancy.clock)
            return found

        return BatchReference(id, chancy, waiter)

    async def find(
        self, chancy: Application, wanted: BatchFilter | None = None
    ) -> Sequence[BatchRecord]:
        """Batches by a filter, newest first."""
        return await BatchCalls(chancy.broker).find(wanted or BatchFilter())


async def _panel_rows(chancy: Application) -> Sequence[Mapping[str, Any]]:
    """The newest batches, for the dashboard."""
    found = await BatchCalls(chancy.broker).find(BatchFilter(limit=100))
    return [
        {
            "id": str(batch.id),
            "name": batch.name,
            "state": batch.state.label,
            "open": batch.open,
            "total": batch.progress.total,
            "pending": batch.progress.pending,
            "succeeded": batch.progress.succeeded,
            "failed": batch.progress.failed,
            "cancelled": batch.progress.cancelled,
            "pushed_at": batch.pushed_at.isoformat(),
            "finished_at": batch.finished_at and batch.finished_at.isoformat(),
        }
        for batch in found
    ]
