-- Deletes up to $2 steps of workflows that ended over $1 seconds ago. Returns how many.
-- Finds rows workflow by workflow, and deletes them by ctid, so that the plan does not depend on the
-- planner's estimates.
-- Index: workflows_finished, the primary key of workflows_steps. Locks: the workflows, so that
-- none is retried meanwhile, and what it deletes, skipping locked rows. Safe to repeat.
with gone as (
  delete from {schema}.workflows_steps as s
  where s.ctid = any (array(
    select o.ctid
    from (
      select w.id
      from {schema}.workflows as w
      where w.finished_at < now() - $1::float8 * interval '1 second'
      order by w.finished_at
      limit 1000
      for no key update skip locked) as w
    cross join lateral (
      select t.ctid
      from {schema}.workflows_steps as t
      where t.workflow_id = w.id
      order by t.name
      limit $2::int
      for update skip locked) as o
    limit $2::int))
  returning 1)
select count(*)
from gone
