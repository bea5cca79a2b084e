-- Deletes timers that are due: $1 workflows, $2 steps, $3 runs. That of a step that waits yet, in a workflow that
-- goes on, stays, whatever was seen before: it went on since, and nothing else would end the wait. So does that of
-- a workflow that is locked, which may be about to go on: until the next turn.
-- Index: the primary keys, once for each timer. Locks: the workflows that do not go on by sharing, skipping locked
-- ones; the timers by workflow and name. Safe to repeat.
with rung as materialized (
  select u.id, u.name, u.run, exists (
    -- Offset keeps it from a hash of all steps.
    select
    from {schema}.workflows_steps as s
    where s.workflow_id = u.id and s.name = u.name and s.run = u.run and s.state = 0
    offset 0) as waits
  from unnest($1::uuid[], $2::text[], $3::int[]) as u (id, name, run)),
resting as materialized (
  select w.id
  from {schema}.workflows as w
  where w.id = any (array(select r.id from rung as r where r.waits))
    and w.state <> 1
  order by w.id
  for share skip locked)
delete from {schema}.workflows_timers as t
using (
  select o.workflow_id, o.name, o.run
  from rung as r
  join {schema}.workflows_timers as o on o.workflow_id = r.id and o.name = r.name and o.run = r.run
  where o.due_at <= clock_timestamp()
    and (not r.waits or r.id in (select l.id from resting as l))
  order by o.workflow_id, o.name
  for update of o) as d
where t.workflow_id = d.workflow_id
  and t.name = d.name
  and t.run = d.run
