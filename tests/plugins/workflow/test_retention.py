"""What is too old is forgotten as fast as it comes."""

from __future__ import annotations

from chancy import Chancy
from chancy.clock import SystemClock
from chancy.plugins.batch import Batches
from chancy.plugins.batch.outcomes import BatchOutcomes as BatchNotes
from chancy.plugins.batch.sweep import BatchSweep as BatchSweep
from chancy.plugins.workflow import Workflows
from tests.plugins.workflow.running import execute, sweep_of

#: More than one statement looks at.
OLD = 2_300
FLOWS = """
with flows as (
  insert into chancy.workflows (id, name, state, steps, finished_at)
  select md5('w' || n)::uuid, 'old', 4, 1, now() - interval '9 days'
  from generate_series(1, %s) as n
  returning id)
insert into chancy.workflows_steps (workflow_id, name, place, state, needs, joins, job_id, queue,
  priority, func, arguments, max_attempts)
select id, 's', 0, 4, 0, array[''], id, 'q', 0, 'a.b', '{}', 3
from flows
"""
BATCHES = """
with batches as (
  insert into chancy.batches (id, name, state, open, finished_at)
  select md5('b' || n)::uuid, 'old', 5, false, now() - interval '9 days'
  from generate_series(1, %s) as n
  returning id)
insert into chancy.batches_jobs (batch_id, job_id, state)
select id, id, 5
from batches
"""


async def test_one_turn_forgets_more_workflows_than_one_statement_looks_at(flows_dsn: str) -> None:
    execute(flows_dsn, FLOWS, OLD)
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        assert await sweep_of(chancy, 8).purge() == OLD
    assert execute(flows_dsn, "select name from chancy.workflows_steps") == []


async def test_one_turn_forgets_more_batches_than_one_statement_looks_at(batches_dsn: str) -> None:
    execute(batches_dsn, BATCHES, OLD)
    async with Chancy(batches_dsn, plugins=[Batches()]) as chancy:
        sweep = BatchSweep(chancy.broker, SystemClock(), BatchNotes(), keep_days=8)
        assert await sweep.purge() == OLD
    assert execute(batches_dsn, "select job_id from chancy.batches_jobs") == []
