-- Forgets workflows without steps that ended over $1 seconds ago, up to $2 of them. Gives how many.
-- Index: workflows_finished, the primary keys. Locks: what it deletes, skipping locked rows.
-- Safe to repeat.
with gone as (
  delete from {schema}.workflows as w
  using (
    select o.id
    from {schema}.workflows as o
    where o.finished_at < now() - $1::float8 * interval '1 second'
      and not exists (
        select
        from {schema}.workflows_steps as s
        where s.workflow_id = o.id)
    order by o.finished_at
    limit $2::int
    for update skip locked) as l
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
away as (
  delete from {schema}.workflows_away as a
  using gone as g
  where a.workflow_id = g.id)
select count(*)
from gone
