"""Helpers for tests of workflows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from chancy import Chancy, Plugin, Queue, Settlement, Worker
from chancy.broker.transaction import Transaction
from chancy.clock import Clock, SystemClock
from chancy.plugins.retry import Retries
from chancy.plugins.workflow import WorkflowReference, Workflows, WorkflowState
from chancy.plugins.workflow.outcomes import StepOutcomes
from chancy.plugins.workflow.sweep import WorkflowSweep
from chancy.retry import Constant, Jitter
from tests.support.sql import ask
from tests.support.waiting import eventually

ASYNC = Queue(name="async", executor="async")
SOON = Retries(Constant(delay_s=0.01, jitter=Jitter.NONE))
#: Refuses to push the jobs of some steps, as if they were too large with their results.
REFUSE = """
create function chancy.refuse() returns trigger language plpgsql as $$
begin
  raise exception 'not this one' using errcode = 'program_limit_exceeded';
end $$;
create trigger refuse before insert on chancy.jobs for each row
  when (new.meta -> 'workflow' ->> 'step' in ('refused', 'then', 'undo kept'))
  execute function chancy.refuse();
"""


#: The lock of a transaction that extends a workflow.
LOCK = "select from chancy.workflows where id = %s for no key update"


class Unreporting(Workflows):
    """Reports no outcomes, as a worker that was killed after it settled its jobs."""

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None: ...
    async def serve(self, runtime: Any) -> None: ...


@asynccontextmanager
async def working(
    dsn: str, flows: Workflows, *plugins: Plugin, queue: Queue = ASYNC
) -> AsyncGenerator[Chancy]:
    """An application with a worker of one queue."""
    given = [flows, SOON, *plugins]
    async with Chancy(dsn, queues=[queue], plugins=given) as chancy, Worker(chancy):
        yield chancy


def sweep_of(
    chancy: Chancy, keep_days: float | None = None, clock: Clock | None = None
) -> WorkflowSweep:
    """The sweep of a worker that has recorded no attempts."""
    return WorkflowSweep(chancy.broker, clock or SystemClock(), StepOutcomes(), keep_days=keep_days)


async def states(reference: WorkflowReference) -> dict[str, str]:
    return {one.name: one.state.value for one in await reference.steps()}


async def stopped(dsn: str, count: int) -> None:
    """Wait until so many steps are stored as cancelled. They are shown as cancelled before, but can
    only then be retried."""
    told = "select count(*) from chancy.workflows_steps where state = 6"
    await eventually(lambda: ask(dsn, told) == [(count,)])


async def is_in(reference: WorkflowReference, state: WorkflowState) -> bool:
    found = await reference.get()
    return found is not None and found.state is state
