"""`Workflows`, the plugin.

Every application has it, so modules that only workflows need are imported with the first workflow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.broker.transaction import Transaction
from chancy.clock import Clock
from chancy.errors import LOCK_NOT_AVAILABLE, StatementFailed
from chancy.plugin.pushing import PreparedPush, Pushable
from chancy.plugin.runtime import Application, Panel, Runtime
from chancy.plugin.tables import PayloadTable, facts
from chancy.plugin.tracking.group_plugin import GroupPlugin
from chancy.plugins.workflow.outcomes import (
    SQL,
    RecordedAttempt,
    StepOutcome,
    StepOutcomes,
    advance_statement,
    ref_of,
)
from chancy.plugins.workflow.starts import Starts
from chancy.postgres.schema.component import Migrations, RoleKind
from chancy.postgres.within import bind, bind_blocking, run_blocking
from chancy.postgres.within.calls import Fetch

if TYPE_CHECKING:
    import click

    from chancy.plugins.workflow.description import Workflow
    from chancy.plugins.workflow.record import WorkflowFilter, WorkflowRecord
    from chancy.plugins.workflow.reference import WorkflowReference
    from chancy.plugins.workflow.sweep import WorkflowSweep

#: Seconds for which settlements skip locked workflows after one has waited in vain.
_SKIP_LOCKED_S = 5.0


class Workflows(GroupPlugin[RecordedAttempt, StepOutcome]):
    """Runs workflows: the transaction that settles a step starts the steps that wait for it.

    If a settlement cannot report an outcome, the service of the plugin does: that of the step's
    worker within seconds, otherwise that of the leader; other workers sweep rarely, so a leader is
    not required. Install the plugin in every worker whose queues have steps: without it, outcomes
    wait for the leader's sweep.

    :param keep_days: days for which ended workflows are kept; None: forever.
    :param sweep_s: seconds between two sweeps of the leader.
    :raises ConfigurationError: a setting is out of range.
    """

    groups = "workflows"

    def __init__(self, *, keep_days: int | None = 30, sweep_s: float = 5.0) -> None:
        super().__init__(keep_days=keep_days, sweep_s=sweep_s)
        self._starts = Starts()
        #: Workflows of a settlement that another transaction held up, and until when settlements
        #: skip those of them that are locked.
        self._locked: set[UUID] = set()
        self._skip_locked_until = 0.0

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
                    "workflows_timers": "select, insert, update",
                }
            },
        )

    def payload_tables(self) -> Sequence[PayloadTable]:
        payloads = {
            "workflows_steps": ["arguments", "result", "error"],
            "workflows_signals": ["payload"],
        }
        return [
            PayloadTable(table=table, id="workflow_id", name="name", payloads=columns)
            for table, columns in payloads.items()
        ]

    def commands(self) -> Sequence[click.Command]:
        from chancy.plugins.workflow.commands import workflow

        return [workflow]

    def panels(self) -> Sequence[Panel]:
        return [Panel(name="workflows", title="Workflows", rows=_panel_rows)]

    # In a worker

    def judging(self, claim: Claim, outcome: Outcome, decision: Settlement) -> Settlement:
        # The decision stays as it is: only a claim names the step of its job.
        if claim.meta is not None and (ref := ref_of(claim.meta)) is not None:
            self._outcomes.record(claim.id, RecordedAttempt(ref, outcome.elapsed_s))
        return decision

    def _recorded(self) -> StepOutcomes:
        return StepOutcomes()

    async def _write(
        self, tx: Transaction, outcomes: Sequence[StepOutcome]
    ) -> Sequence[StepOutcome]:
        if time.monotonic() >= self._skip_locked_until:
            self._locked.clear()
        if any(outcome.group in self._locked for outcome in outcomes):
            outcomes = await self._unlocked(tx, outcomes)
            if not outcomes:
                return outcomes
        advance = advance_statement(tx.schema, outcomes, most=self._starts.most)
        try:
            ((_, pieces),) = await tx.fetch(*advance)
        except StatementFailed as error:
            if error.sqlstate == LOCK_NOT_AVAILABLE:
                self._skip_locked_until = time.monotonic() + _SKIP_LOCKED_S
                self._locked.update(outcome.group for outcome in outcomes)
            raise
        if pieces:
            self._starts.add(pieces)
        return outcomes

    async def _unlocked(
        self, tx: Transaction, outcomes: Sequence[StepOutcome]
    ) -> Sequence[StepOutcome]:
        """The outcomes whose workflows no other transaction has locked. The service stores the
        others."""
        tried = self._locked.intersection(outcome.group for outcome in outcomes)
        rows = await tx.fetch(SQL.statement("free", tx.schema), list(tried))
        free = {id for (id,) in rows}
        self._locked -= free
        locked = tried - free
        self._outcomes.mark_unreported(one for one in outcomes if one.group in locked)
        return [outcome for outcome in outcomes if outcome.group not in locked]

    def _sweep(self, broker: Broker, clock: Clock) -> WorkflowSweep:
        from chancy.plugins.workflow.sweep import WorkflowSweep

        keep, left = self.keep_days, self._starts
        return WorkflowSweep(broker, clock, self._outcomes, keep_days=keep, left=left)

    async def serve(self, runtime: Runtime) -> None:
        if not isinstance(runtime.broker, SqlStore):
            return
        starting = asyncio.create_task(
            self._starts.serve(SQL.on(runtime.broker), runtime.clock), name="chancy workflows"
        )
        try:
            await super().serve(runtime)
        finally:
            starting.cancel()
            await asyncio.wait([starting])

    # For applications

    def prepare_push(
        self, chancy: Application, value: Pushable[Any], *, within: bool, validate: bool
    ) -> PreparedPush[Any] | None:
        from chancy.plugins.workflow.calls import WorkflowCalls
        from chancy.plugins.workflow.description import Workflow
        from chancy.plugins.workflow.preparation import Preparation

        if not isinstance(value, Workflow):
            return None
        prepared = Preparation(chancy, value, validate=validate, within=within).prepare()

        async def store(broker: Broker, fetch: Fetch | None) -> None:
            await WorkflowCalls(broker).push(prepared, fetch)

        return PreparedPush(store, self.reference(chancy, value.id, stored=not within))

    def reference(
        self, chancy: Application, id: UUID, *, stored: bool = False
    ) -> WorkflowReference:
        """A handle to a workflow by its id. Raises `TypeError` if the id is not a `UUID`.

        :param stored: its push has been committed, so a missing workflow is gone. Otherwise a wait
            for a missing workflow continues.
        """
        from chancy.plugins.workflow.reference import WorkflowReference

        return WorkflowReference(id, chancy, stored=stored)

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
        """`signal` for code without an event loop, in a transaction of the caller."""
        return self.reference(chancy, id).sync_signal(name, payload, within=within)

    async def find(
        self, chancy: Application, wanted: WorkflowFilter | None = None
    ) -> Sequence[WorkflowRecord]:
        """Workflows by a filter, newest first."""
        from chancy.plugins.workflow.calls import WorkflowCalls
        from chancy.plugins.workflow.record import WorkflowFilter

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
        """In a running step, add steps to its workflow. They wait for it unless they name others.

        Steps that an earlier attempt has added stay unchanged. An attempt that has lost its lease
        adds nothing.

        :param more: the steps to add; its name and id are ignored. They may wait for steps of the
            workflow by name.
        :param before: names of steps of the workflow that will wait for the last of these.
        :param within: a connection with an open transaction of the caller. Commit soon, because the
            row of the job is locked until then.
        :raises PushError: the steps cannot be added. Nothing was written.
        :raises LeaseLost: another worker has the job, or it has ended.
        """
        from chancy.plugins.workflow.extension import Extension

        given = within is not None
        extension = Extension(more, before, chancy, validate=validate, within=given)
        await extension.add(bind(within) if given else SQL.on(chancy.broker).store.fetch)

    def sync_extend(
        self,
        chancy: Application,
        more: Workflow,
        *,
        within: object,
        before: Sequence[str] = (),
        validate: bool = True,
    ) -> None:
        """`extend` for plain functions, in a transaction of the caller."""
        from chancy.plugins.workflow.extension import Extension

        extension = Extension(more, before, chancy, validate=validate, within=True)
        run_blocking(extension.add(bind_blocking(within)))


async def _panel_rows(chancy: Application) -> Sequence[Mapping[str, Any]]:
    """The newest workflows, for the dashboard."""
    from chancy.plugins.workflow.calls import WorkflowCalls
    from chancy.plugins.workflow.record import WorkflowFilter

    return [
        facts(one) for one in await WorkflowCalls(chancy.broker).find(WorkflowFilter(limit=100))
    ]
