"""Workflows: graphs of steps, where each step may take the results of steps before it."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping, Sequence
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
from chancy.plugins.workflow.calls import WorkflowCalls, WorkflowFilter, push_within_sync
from chancy.plugins.workflow.description import Workflow, chain, chord, group
from chancy.plugins.workflow.extension import Extension
from chancy.plugins.workflow.outcomes import (
    StepOutcome,
    StepOutcomes,
    advance_statement,
    outcome_order,
)
from chancy.plugins.workflow.preparation import prepared
from chancy.plugins.workflow.record import (
    StepRecord,
    StepState,
    WorkflowProgress,
    WorkflowRecord,
    WorkflowState,
)
from chancy.plugins.workflow.reference import (
    WorkflowFailed,
    WorkflowReference,
    WorkflowWaiter,
    waiter_for,
)
from chancy.plugins.workflow.sources import Each, From
from chancy.plugins.workflow.starts import Starts
from chancy.plugins.workflow.step import OnFailure, Step
from chancy.plugins.workflow.store import store_of
from chancy.plugins.workflow.sweep import WorkflowSweep
from chancy.plugins.workflow.timers import SignalTimeouts
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

#: Sweeps of the leader for one of a worker that does not lead.
_RARELY = 10
#: Seconds between two checks of recorded attempts, and between two deletions of old workflows.
_CHECK_S, _PURGE_S = 1.0, 300.0


class Workflows(Plugin):
    """Runs workflows: the transaction that settles a step starts the steps that wait for it.

    A service reports outcomes that a settlement could not report: the worker of the step within
    seconds, otherwise the leader; other workers sweep rarely, so a leader is not required. Install
    the plugin in every worker whose queues have steps: without it, outcomes wait for the leader's
    sweep.

    :param keep_days: days for which ended workflows are kept; None: for ever.
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
        self._outcomes = StepOutcomes()
        self._pending: PendingOutcomes[StepOutcome] = PendingOutcomes("workflows")
        self._starts = Starts()
        # One for each broker, kept while a caller waits: it refers to its broker.
        self._waiters: WeakValueDictionary[Broker, WorkflowWaiter] = WeakValueDictionary()

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
        return [Panel(name="workflows", title="Workflows", rows=_panel_rows)]

    # In a worker

    def judging(self, claim: Claim, outcome: Outcome, verdict: Settlement) -> Settlement:
        # The decision stays as it is: only a claim names the step of its job.
        if claim.meta is not None:
            self._outcomes.record(claim, outcome, time.monotonic())
        return verdict

    #: Including states that are not final: releasing a job that was asked to stop cancels it.
    settling_states = frozenset(State)

    def settling_concerns(self, settlement: Settlement) -> bool:
        return settlement.id in self._outcomes

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        outcomes = self._outcomes.outcomes_of(await finals(tx, batch))
        if outcomes:
            advance = advance_statement(tx.schema, outcomes, most=self._starts.most)
            try:
                ((_, pieces),) = await tx.fetch(*advance)
            except BaseException:
                self._outcomes.mark_unreported(outcomes)
                raise
            self._outcomes.mark_reported(outcomes)
            if pieces:
                self._starts.add(pieces)

    def settled(self, batch: Sequence[Settlement]) -> None:
        self._pending.add(self._outcomes.settled(batch))

    async def serve(self, runtime: Runtime) -> None:
        broker, clock = runtime.broker, runtime.clock
        if not isinstance(broker, SqlStore):
            return
        sweep = WorkflowSweep(broker, clock, self._outcomes, keep_days=self.keep_days)
        calls = WorkflowCalls(broker)

        async def report(outcomes: list[StepOutcome]) -> None:
            await calls.advance_each(sorted(outcomes, key=outcome_order), alone=False)

        reporting = self._pending.tell(report, clock)
        starting = self._starts.serve(broker, clock)
        tasks = [
            asyncio.create_task(work, name="chancy workflows") for work in (reporting, starting)
        ]
        try:
            await self._sweep(runtime, sweep)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _sweep(self, runtime: Runtime, sweep: WorkflowSweep) -> None:
        clock, timers = runtime.clock, SignalTimeouts(runtime.broker)
        turn_at = purge_at = clock.monotonic()
        while True:
            if len(self._outcomes):
                await sweep.check_recorded()
            now = clock.monotonic()
            if runtime.leader.leading or now >= turn_at:
                await timers.turn()
            if now >= turn_at:
                await sweep.turn()
                if sweep.more_pieces:  # started by the task beside the sweep
                    self._starts.add(1)
                every_s = self.sweep_s if runtime.leader.leading else _RARELY * self.sweep_s
                turn_at = now + every_s * random.uniform(0.8, 1.2)
            if now >= purge_at and runtime.leader.leading:
                await sweep.purge()
                purge_at = now + _PURGE_S
            await clock.sleep(min(_CHECK_S, self.sweep_s))

    # For applications

    async def push(
        self,
        chancy: Application,
        workflow: Workflow,
        *,
        within: object | None = None,
        validate: bool = True,
    ) -> WorkflowReference:
        """Store a workflow, and start the steps that wait for no other.

        :param within: a connection in a transaction of the caller's, as for `Chancy.push`.
        :param validate: False to push functions that this process cannot import.
        :raises PushError: the workflow is invalid; names the step. Nothing was written.
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
        """A handle to a workflow by its id. Raises `TypeError` if the id is not a `UUID`."""

        def waiter() -> WorkflowWaiter:
            found = self._waiters.get(chancy.broker)
            if found is None:
                found = self._waiters[chancy.broker] = waiter_for(chancy.broker, chancy.clock)
            return found

        return WorkflowReference(id, chancy, waiter)

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
        """In a running step: add steps to its workflow. They wait for it unless they name others.

        Steps that an earlier attempt has added stay unchanged. An attempt that has lost its lease
        adds nothing.

        :param more: the steps; its name and id are ignored. They may wait for steps of the
            workflow by name.
        :param before: names of steps of the workflow that will wait for the last of these.
        :param within: a connection in a transaction of the caller's. Commit soon: the row of the
            job is locked until then.
        :raises PushError: the steps cannot be added. Nothing was written.
        :raises LeaseLost: another worker has the job, or it has ended.
        """
        store = store_of(chancy.broker)
        extension = Extension(more, before, store.schema, chancy, validate=validate)
        await extension.add(store.fetch if within is None else bind(within))

    def sync_extend(
        self,
        chancy: Application,
        more: Workflow,
        *,
        within: object,
        before: Sequence[str] = (),
        validate: bool = True,
    ) -> None:
        """`extend` for plain functions, in a transaction of the caller's."""
        schema = store_of(chancy.broker).schema
        Extension(more, before, schema, chancy, validate=validate).add_sync(bind_sync(within))


async def _panel_rows(chancy: Application) -> Sequence[Mapping[str, Any]]:
    """The newest workflows, for the dashboard."""
    found = await WorkflowCalls(chancy.broker).find(WorkflowFilter(limit=100))
    return [
        {
            "id": str(workflow.id),
            "name": workflow.name,
            "state": workflow.state.label,
            "steps": workflow.steps,
            "error": workflow.error,
            "pushed_at": workflow.pushed_at.isoformat(),
            "finished_at": workflow.finished_at and workflow.finished_at.isoformat(),
        }
        for workflow in found
    ]
