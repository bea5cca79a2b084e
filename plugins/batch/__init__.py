"""Batches: groups of jobs, with callbacks that are pushed when they have ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.broker.transaction import Transaction
from chancy.clock import Clock
from chancy.job.definition import Job
from chancy.plugin.runtime import Application, Panel
from chancy.plugin.tables import PayloadTable
from chancy.plugin.tracking.group_plugin import GroupPlugin
from chancy.plugins.batch.calls import BatchCalls
from chancy.plugins.batch.description import Batch
from chancy.plugins.batch.outcomes import (
    BatchJobOutcome,
    BatchOutcomes,
    BatchRef,
    ref_of,
    settle_statement,
)
from chancy.plugins.batch.pushing import (
    Addition,
    BatchContext,
    Push,
    Pushing,
    blocking_transaction,
    transaction,
)
from chancy.plugins.batch.record import (
    BatchFilter,
    BatchProgress,
    BatchRecord,
    BatchState,
    CallbackRecord,
    On,
    batch_facts,
)
from chancy.plugins.batch.reference import BatchReference
from chancy.plugins.batch.sweep import BatchSweep
from chancy.postgres.schema.component import Migrations, RoleKind
from chancy.postgres.within import run_blocking

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


class Batches(GroupPlugin[BatchRef, BatchJobOutcome]):
    """Counts ended jobs of batches, and pushes callbacks, in the transactions that settle the jobs.

    If a settlement cannot report an outcome, the service of the plugin does: that of the job's
    worker within seconds, otherwise that of the leader; other workers sweep rarely, so a leader is
    not required. Install the plugin in every worker whose queues have jobs of batches: without it,
    outcomes wait for the sweep.

    :param keep_days: days for which ended batches are kept; None: forever.
    :param sweep_s: seconds between two sweeps of the leader.
    :raises ConfigurationError: a setting is out of range.
    """

    groups = "batches"

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
        )

    def payload_tables(self) -> Sequence[PayloadTable]:
        return [
            PayloadTable(
                table="batches_callbacks",
                id="batch_id",
                name="kind",
                name_type="smallint",
                payloads=["arguments"],
            )
        ]

    def commands(self) -> Sequence[click.Command]:
        from chancy.plugins.batch.commands import batch

        return [batch]

    def panels(self) -> Sequence[Panel]:
        return [Panel(name="batches", title="Batches", rows=_panel_rows)]

    # In a worker

    def judging(self, claim: Claim, outcome: Outcome, decision: Settlement) -> Settlement:
        # The decision stays as it is: only a claim names the batch of its job.
        if claim.meta is not None and (ref := ref_of(claim.meta)) is not None:
            self._outcomes.record(claim.id, ref)
        return decision

    def _recorded(self) -> BatchOutcomes:
        return BatchOutcomes()

    async def _write(
        self, tx: Transaction, outcomes: Sequence[BatchJobOutcome]
    ) -> Sequence[BatchJobOutcome]:
        await tx.fetch(*settle_statement(tx.schema, outcomes))
        return outcomes

    def _sweep(self, broker: Broker, clock: Clock) -> BatchSweep:
        return BatchSweep(broker, clock, self._outcomes, keep_days=self.keep_days)

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
        :param within: a connection with an open transaction of the caller, as for `Chancy.push`;
            roll it back after an error.
        :param validate: False to push functions that this process cannot import.
        :raises PushError: a job or a callback, which the error names, cannot be stored. Nothing was
            written.
        """
        push = Push(chancy, batch, jobs, validate=validate, within=within is not None)
        async with transaction(chancy, within, validate=validate) as tx:
            await push.push(tx)
        return self.reference(chancy, batch.id, stored=within is None)

    def sync_push(
        self,
        chancy: Pushing,
        batch: Batch,
        jobs: Iterable[Job[Any]],
        *,
        within: object,
        validate: bool = True,
    ) -> BatchReference:
        """`push` for code without an event loop, in the caller's transaction."""
        push = Push(chancy, batch, jobs, validate=validate, within=True)
        run_blocking(push.push(blocking_transaction(chancy, within, validate=validate)))
        return self.reference(chancy, batch.id)

    async def add(
        self,
        chancy: Pushing,
        jobs: Iterable[Job[Any]],
        *,
        within: object | None = None,
        validate: bool = True,
    ) -> int:
        """In a running job of a batch, add jobs to that batch, open or not, and return their
        number.

        An attempt that has lost its lease adds nothing. If an attempt adds jobs and then fails, the
        jobs stay, and the next attempt adds its own.

        :param within: a connection with an open transaction of the caller. Commit soon, because the
            row of the job is locked until then.
        :raises PushError: the running job is in no batch, a job cannot be stored, or the batch was
            cancelled or would have over 1,000,000 jobs. Nothing was written; roll back a
            transaction of your own.
        :raises LeaseLost: another worker has the job, or it has ended.
        """
        here = BatchContext.current()
        async with transaction(chancy, within, validate=validate) as tx:
            return await Addition(here.batch, here, jobs).add(tx)

    def sync_add(
        self,
        chancy: Pushing,
        jobs: Iterable[Job[Any]],
        *,
        within: object,
        validate: bool = True,
    ) -> int:
        """`add` for plain functions, in a transaction of the caller."""
        here = BatchContext.current()
        tx = blocking_transaction(chancy, within, validate=validate)
        return run_blocking(Addition(here.batch, here, jobs).add(tx))

    def reference(self, chancy: Pushing, id: UUID, *, stored: bool = False) -> BatchReference:
        """A handle to a batch by its id. Raises `TypeError` if the id is not a `UUID`.

        :param stored: its push has been committed, so a missing batch is gone. Otherwise a wait for
            a missing batch continues.
        """
        return BatchReference(id, chancy, stored=stored)

    async def find(
        self, chancy: Application, wanted: BatchFilter | None = None
    ) -> Sequence[BatchRecord]:
        """Batches by a filter, newest first."""
        return await BatchCalls(chancy.broker).find(wanted or BatchFilter())


async def _panel_rows(chancy: Application) -> Sequence[Mapping[str, Any]]:
    """The newest batches, for the dashboard."""
    found = await BatchCalls(chancy.broker).find(BatchFilter(limit=100))
    return [batch_facts(batch) for batch in found]
