"""Workflows: steps that run in an order, and pass on what they return."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
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
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Application, Panel, Runtime
from chancy.plugin.tracking import PendingOutcomes
from chancy.plugins.workflow.description import Workflow, chain, chord, group
from chancy.plugins.workflow.ends import StepOutcome, StepOutcomes, advancing, order
from chancy.plugins.workflow.extension import Extension
from chancy.plugins.workflow.flows import WorkflowCalls, WorkflowFilter, push_within_sync
from chancy.plugins.workflow.panel import rows
from chancy.plugins.workflow.preparation import prepared
from chancy.plugins.workflow.record import (
    StepRecord,
    StepState,
    WorkflowProgress,
    WorkflowRecord,
    WorkflowState,
)
from chancy.plugins.workflow.reference import WorkflowFailed, WorkflowReference
from chancy.plugins.workflow.sources import Each, From
from chancy.plugins.workflow.starts import Starts
from chancy.plugins.workflow.step import OnFailure, Step
from chancy.plugins.workflow.store import store_of
from chancy.plugins.workflow.sweep import WorkflowSweep
from chancy.plugins.workflow.timers import SignalTimeouts
from chancy.plugins.workflow.waiting import Waiting, waiting_for
from chancy.postgres.schema.component import Migrations, RoleKind
from chancy.postgres.settle.finals import finals
from chancy.postgres.within import bind, bind_sync
from chancy.states import State
from chancy.text import shown

if TYPE_CHECKING:
    import click

__all__ = [
    "Each",
    "From",
    "OnFailure",
    "Step",
    "StepRecord",
    "StepState",
    "Workflow",
    "WorkflowFailed",
    "WorkflowFilter",
    "WorkflowProgress",
    "WorkflowRecord",
    "WorkflowReference",
    "WorkflowState",
    "Workflows",
    "chain",
    "chord",
    "group",
]

logger = logging.getLogger("chancy.workflows")

#: Turns of the leader for one of a worker that does not lead.
_RARELY = 10
#: Seconds between two looks at what was seen to end here, and between two at what is too old.
_ASK_S, _RETAIN_S = 1.0, 300.0


class Workflows(Plugin):
    """Runs workflows: each step lets the next ones go on in the transaction that settles it.

    What that could not tell, a service tells: of the same worker within seconds, or else of the
    leader, and rarely of the others, so that it is done without any leader. Every worker of queues
    that steps are in should have the plugin: the ends of others wait for the leader's sweep.

    :param keep_days: days for which workflows that have ended are kept; None: for ever.
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
        self._notes = StepOutcomes()
        self._untold: PendingOutcomes[StepOutcome] = PendingOutcomes("workflows")
        self._starts = Starts()
        # While somebody waits: it holds its broker.
        self._waiting: WeakValueDictionary[Broker, Waiting] = WeakValueDictionary()

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.workflows"

    def migrations(self) -> Migrations | None:
        return Migrations(
            name="workflows",
            package="chancy.plugins.workflow.migrations",
            head="0001",
            grants={
                RoleKind.PRODUCER: {
                    "workflows": "select, insert, update",
                    "workflows_steps": "select, insert, update",
                    "workflows_joins": "select, insert, update",
                    "workflows_signals": "select, insert",
                    "workflows_starts": "select, insert",
                    "workflows_away": "select, insert, delete",
                    "workflows_timers": "select, insert, update",
                }
            },
            core_grants={RoleKind.PRODUCER: {"queues": "select (name, broker)"}},
        )

    def commands(self) -> Sequence[click.Command]:
        from chancy.plugins.workflow.commands import workflow

        return [workflow]

    def panels(self) -> Sequence[Panel]:
        return [Panel(name="workflows", title="Workflows", rows=rows)]

    # Beside a worker

    def judging(self, claim: Claim, outcome: Outcome, verdict: Settlement) -> Settlement:
        # It has no opinion: a claim says which step its job is, and a settlement does not.
        if claim.meta is not None:
            self._notes.note(claim, outcome, time.monotonic())
        return verdict

    #: Also of those that go back: one that was asked to stop ends so.
    settling_states = frozenset(State)

    def settling_concerns(self, settlement: Settlement) -> bool:
        return settlement.id in self._notes

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        ends = self._notes.ends(await finals(tx, batch))
        if ends:
            try:
                ((_, pieces),) = await tx.fetch(*advancing(tx.schema, ends, most=self._starts.most))
            except BaseException:
                self._notes.not_told(ends)
                raise
            self._notes.told(ends)
            if pieces:
                self._starts.add(pieces)

    def settled(self, batch: Sequence[Settlement]) -> None:
        self._untold.add(self._notes.settled(batch))

    async def serve(self, runtime: Runtime) -> None:
        broker, clock = runtime.broker, runtime.clock
        if not isinstance(broker, SqlStore):
            return
        sweep = WorkflowSweep(broker, clock, self._notes, keep_days=self.keep_days)
        flows = WorkflowCalls(broker)

        async def told(ends: list[StepOutcome]) -> None:
            await flows.advance_each(sorted(ends, key=order), alone=False)

        telling = self._untold.tell(told, clock)
        starting = self._starts.serve(broker, clock)
        beside = [asyncio.create_task(one, name="chancy workflows") for one in (telling, starting)]
        try:
            await self._sweep(runtime, sweep)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)

    async def _sweep(self, runtime: Runtime, sweep: WorkflowSweep) -> None:
        clock, timers = runtime.clock, SignalTimeouts(runtime.broker)
        turn_at = retain_at = clock.monotonic()
        while True:
            if len(self._notes):
                await sweep.ask()
            now = clock.monotonic()
            if runtime.leader.leading or now >= turn_at:
                await timers.turn()
            if now >= turn_at:
                await sweep.turn()
                if sweep.more_pieces:  # beside the sweep, until there are none
                    self._starts.add(1)
                every_s = self.sweep_s if runtime.leader.leading else _RARELY * self.sweep_s
                turn_at = now + every_s * random.uniform(0.8, 1.2)
            if now >= retain_at and runtime.leader.leading:
                await sweep.retain()
                retain_at = now + _RETAIN_S
            await clock.sleep(min(_ASK_S, self.sweep_s))

    # For programs

    async def push(
        self,
        chancy: Application,
        workflow: Workflow,
        *,
        within: object | None = None,
        validate: bool = True,
    ) -> WorkflowReference:
        """Store a workflow, and start the steps that wait for nothing.

        :param within: a connection in a transaction of the caller's, as `Chancy.push` takes it.
        :param validate: False to push functions that this process cannot import.
        :raises PushError: it cannot run as it is; names the step. Nothing was written.
        """
        stored = prepared(chancy, workflow, validate=validate)
        await WorkflowCalls(chancy.broker).push(stored, within)
        return self.reference(chancy, stored.id)

    def sync_push(
        self, chancy: Application, workflow: Workflow, *, within: object, validate: bool = True
    ) -> WorkflowReference:
        """`push` for code without an event loop, in a transaction of the caller's."""
        stored = prepared(chancy, workflow, validate=validate)
        push_within_sync(store_of(chancy.broker).schema, stored, within)
        return self.reference(chancy, stored.id)

    def reference(self, chancy: Application, id: UUID) -> WorkflowReference:
        """A handle to a workflow that was pushed. Raises `TypeError` if the id is no `UUID`."""

        def waiting() -> Waiting:
            found = self._waiting.get(chancy.broker)
            if found is None:
                found = self._waiting[chancy.broker] = waiting_for(chancy.broker, chancy.clock)
            return found

        return WorkflowReference(id, chancy, waiting)

    async def signal(
        self,
        chancy: Application,
        id: UUID,
        name: str,
        payload: Any = None,
        *,
        within: object | None = None,
    ) -> bool:
        """`WorkflowReference.signal` for a workflow by its id."""
        return await self.reference(chancy, id).signal(name, payload, within=within)

    def sync_signal(
        self, chancy: Application, id: UUID, name: str, payload: Any = None, *, within: object
    ) -> bool:
        """`signal` for code without an event loop, in a transaction of the caller's."""
        return self.reference(chancy, id).sync_signal(name, payload, within=within)

    async def find(
        self, chancy: Application, wanted: WorkflowFilter | None = None
    ) -> Sequence[WorkflowRecord]:
        """Workflows by a filter, newest first."""
        return await WorkflowCalls(chancy.broker).find(wanted or WorkflowFilter())

    async def extend(
        self,
        chancy: Application,
        more: Workflow,
        *,
        before: Sequence[str] = (),
        within: object | None = None,
        validate: bool = True,
    ) -> None:
        """In a step that runs: add steps to its workflow, behind it unless they say otherwise.

        Steps that an earlier attempt has added stay as they are. An attempt whose lease is lost
        adds nothing.

        :param more: the steps; its name and id do not matter. They may wait for steps of the
            workflow by name.
        :param before: steps of the workflow that are to wait for the last ones of these.
        :param within: a connection in a transaction of the caller's. Commit soon: the row of the
            job is locked until then.
        :raises PushError: they cannot be added; says why. Nothing was written.
        :raises LeaseLost: another worker has the job, or it has ended.
        """
        store = store_of(chancy.broker)
        added = Extension(more, before, store.schema, chancy, validate=validate)
        await added.add(store.fetch if within is None else bind(within))

    def sync_extend(
        self,
        chancy: Application,
        more: Workflow,
        *,
        within: object,
        before: Sequence[str] = (),
        validate: bool = True,
    ) -> None:
        """`extend` for plain functions, in a transaction of theirs."""
        schema = store_of(chancy.broker).schema
        Extension(more, before, schema, chancy, validate=validate).add_sync(bind_sync(within))
