"""Batches: jobs that belong together, and what is pushed when they have ended."""

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
from chancy.plugins.batch.ends import BatchJobOutcome, BatchOutcomes, place_of, settling
from chancy.plugins.batch.pushing import Addition, BatchContext, Push, Pushing, SyncPushing
from chancy.plugins.batch.record import (
    BatchFilter,
    BatchProgress,
    BatchRecord,
    BatchState,
    CallbackRecord,
    On,
)
from chancy.plugins.batch.reference import BatchReference
from chancy.plugins.batch.sweep import BatchSweep
from chancy.plugins.batch.waiting import Waiting, waiting_for
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

#: Turns of the leader for one of a worker that does not lead.
_RARELY = 10
#: Seconds between two looks at what was seen to end here, and between two at what is too old. A
#: settlement may wait for seconds for its turn on a busy server.
_ASK_S, _RETAIN_S = 2.0, 300.0
_SLEEP_S = 1.0


class Batches(Plugin):
    """Counts the jobs of batches as they end, and pushes callbacks, in the settling transactions.

    What those could not tell, a service tells: of the same worker within seconds, or else of the
    leader, and rarely of the others, so that it is done without any leader. Every worker of queues
    that have jobs of batches should have the plugin: the ends of others wait for the sweep.

    :param keep_days: days for which batches that have ended are kept; None: for ever.
    :param sweep_s: seconds between two sweeps of the leader.
    :raises ConfigurationError: a setting that cannot be.
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
        self._notes = BatchOutcomes()
        self._untold: PendingOutcomes[BatchJobOutcome] = PendingOutcomes("batches", most=100_000)
        # While somebody waits: it holds its broker.
        self._waiting: WeakValueDictionary[Broker, Waiting] = WeakValueDictionary()

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
        return [Panel(name="batches", title="Batches", rows=_rows)]

    # Beside a worker

    def judging(self, claim: Claim, outcome: Outcome, verdict: Settlement) -> Settlement:
        # It has no opinion: a claim says in which batch its job is, and a settlement does not.
        if claim.meta is not None and (place := place_of(claim.meta)) is not None:
            self._notes.note(claim.id, place)
        return verdict

    #: Also of those that go back: one that was asked to stop ends so.
    settling_states = frozenset(State)

    def settling_concerns(self, settlement: Settlement) -> bool:
        return settlement.id in self._notes

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        ends = self._notes.ends(await finals(tx, batch))
        if ends:
            try:
                await tx.fetch(*settling(tx.schema, ends))
            except BaseException:
                self._notes.not_told(ends)
                raise
            self._notes.told(ends)

    def settled(self, batch: Sequence[Settlement]) -> None:
        self._untold.add(self._notes.settled(batch))

    async def serve(self, runtime: Runtime) -> None:
        broker, clock = runtime.broker, runtime.clock
        if not isinstance(broker, SqlStore):
            return
        telling = asyncio.create_task(
            self._untold.tell(BatchCalls(broker).settle, clock), name="chancy batches elsewhere"
        )
        try:
            sweep = BatchSweep(broker, clock, self._notes, keep_days=self.keep_days)
            await self._sweep(runtime, sweep)
        finally:
            telling.cancel()
            await asyncio.wait([telling])

    async def _sweep(self, runtime: Runtime, sweep: BatchSweep) -> None:
        clock = runtime.clock
        ask_at = turn_at = retain_at = clock.monotonic()
        while True:
            now = clock.monotonic()
            if now >= ask_at and len(self._notes):
                await sweep.ask()
                ask_at = now + _ASK_S
            if now >= turn_at:
                await sweep.turn()
                every_s = self.sweep_s if runtime.leader.leading else _RARELY * self.sweep_s
                turn_at = now + every_s * random.uniform(0.8, 1.2)
            if now >= retain_at and runtime.leader.leading:
                await sweep.retain()
                retain_at = now + _RETAIN_S
            await clock.sleep(min(_SLEEP_S, self.sweep_s))

    # For programs

    async def push(
        self,
        chancy: Pushing,
        batch: Batch,
        jobs: Iterable[Job[Any]],
        *,
        within: object | None = None,
        validate: bool = True,
    ) -> BatchReference:
        """Store a batch and its jobs, all or nothing. Without jobs it has ended, unless it is open.

        :param jobs: up to 1,000,000, none of them unique; taken 1,000 at a time.
        :param within: a connection in a transaction of the caller's, as `Chancy.push` takes it;
            after an error it is to be undone.
        :param validate: False to push functions that this process cannot import.
        :raises PushError: a job or a callback cannot be stored; says which. Nothing was written.
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
        """`push` for code without an event loop, in a transaction of the caller's; gives the id."""
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
        """In a running job of a batch: add jobs to that batch, open or not; gives how many.

        An attempt whose lease is lost adds nothing. What an attempt has added stays when it fails
        later, and the next one adds its own.

        :param within: a connection in a transaction of the caller's. Commit soon: the row of the
            job is locked until then.
        :raises PushError: no job of a batch runs here, a job cannot be stored, or the batch was
            cancelled or would have over 1,000,000 jobs. Nothing was written; a transaction of
            yours is to be undone.
        :raises LeaseLost: another worker has the job, or it has ended.
        """
        here = BatchContext.now()
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
        """`add` for plain functions, in a transaction of theirs."""
        here = BatchContext.now()
        addition = Addition(chancy, here.batch, here, jobs)
        return addition.add_sync(chancy, within, validate=validate)

    def reference(self, chancy: Pushing, id: UUID) -> BatchReference:
        """A handle to a batch that was pushed. Raises `TypeError` if the id is no `UUID`."""

        def waiting() -> Waiting:
            found = self._waiting.get(chancy.broker)
            if found is None:
                found = self._waiting[chancy.broker] = waiting_for(chancy.broker, chancy.clock)
            return found

        return BatchReference(id, chancy, waiting)

    async def find(
        self, chancy: Application, wanted: BatchFilter | None = None
    ) -> Sequence[BatchRecord]:
        """Batches by a filter, newest first."""
        return await BatchCalls(chancy.broker).find(wanted or BatchFilter())


async def _rows(chancy: Application) -> Sequence[Mapping[str, Any]]:
    found = await BatchCalls(chancy.broker).find(BatchFilter(limit=100))
    return [
        {
            "id": str(one.id),
            "name": one.name,
            "state": one.state.label,
            "open": one.open,
            "total": one.progress.total,
            "pending": one.progress.pending,
            "succeeded": one.progress.succeeded,
            "failed": one.progress.failed,
            "cancelled": one.progress.cancelled,
            "pushed_at": one.pushed_at.isoformat(),
            "finished_at": one.finished_at and one.finished_at.isoformat(),
        }
        for one in found
    ]
