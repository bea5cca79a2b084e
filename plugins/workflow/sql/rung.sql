-- Deletes due timers: $1 workflows, $2 steps, $3 runs. Keeps the timer of a step that still waits in
-- a workflow that goes on, even if that was different when it was read: nothing else would end the
-- wait. Also keeps, until the next turn, the timers of a locked workflow, which may be about to go on.
-- Index: the primary keys, once for each timer. Locks: the workflows that do not go on in share mode,
-- and the timers by workflow and name, both skipping locked ones. Safe to repeat.
with rung as materialized (
  select u.id, u.name, u.run, exists (
    -- Offset prevents a hash join over all steps.
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
  for update of o skip locked) as d
where t.workflow_id = d.workflow_id
  and t.name = d.name
  and t.run = d.run
