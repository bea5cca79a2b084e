-- Deletes workflows without steps that ended over $1 seconds ago: up to $2 of the oldest 1,000.
-- Returns how many.
-- Index: workflows_finished, the primary keys. Locks: what it deletes, skipping locked rows.
-- Safe to repeat.
with gone as (
  delete from {schema}.workflows as w
  using (
    select o.id
    from (
      select w.id
      from {schema}.workflows as w
      where w.finished_at < now() - $1::float8 * interval '1 second'
      order by w.finished_at
      limit 1000) as w
    join {schema}.workflows as o on o.id = w.id
    where not exists (
      select
      from {schema}.workflows_steps as s
      where s.workflow_id = w.id)
    limit $2::int
    for update of o skip locked) as l
  where w.id = l.id
  returning w.id),
joins as (
  delete from {schema}.workflows_joins as j
  using gone as g
  where j.workflow_id = g.id),
signals as (
  delete from {schema}.workflows_signals as n
  using gone as g
  where n.workflow_id = g.id),
timers as (
  delete from {schema}.workflows_timers as t
  using gone as g
  where t.workflow_id = g.id),
starts as (
  delete from {schema}.workflows_starts as t
  using gone as g
  where t.workflow_id = g.id)
select count(*)
from gone
