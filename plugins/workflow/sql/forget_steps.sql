-- Forgets steps of workflows that ended over $1 seconds ago, up to $2 of them. Gives how many.
-- Index: workflows_finished, the primary key of workflows_steps. Locks: what it deletes, skipping
-- locked rows. Safe to repeat.
with gone as (
  delete from {schema}.workflows_steps as s
  using (
    select o.workflow_id, o.name
    from (
      select w.id
      from {schema}.workflows as w
      where w.finished_at < now() - $1::float8 * interval '1 second'
      order by w.finished_at
      limit 1000) as w
    join {schema}.workflows_steps as o on o.workflow_id = w.id
    limit $2::int
    for update of o skip locked) as l
  where s.workflow_id = l.workflow_id
    and s.name = l.name
  returning s.name)
select count(*)
from gone
