-- Up to $1 due timers, with the outcomes for their steps, and whether the steps still wait. Leaves out
-- those of workflows that other transactions hold.
-- Index: workflows_timers_due, the primary keys. Locks: the workflows in share mode, skipping locked
-- ones. Safe to repeat.
select
  t.workflow_id, t.name, t.run, s.job_id, s.delay_s, s.arguments ? 'cancel',
  s.arguments ? 'default', (s.arguments -> 'default')::text, t.going
from (
  select o.workflow_id, o.name, o.run, w.state = 1 as going
  from {schema}.workflows_timers as o
  join {schema}.workflows as w on w.id = o.workflow_id
  where o.due_at <= clock_timestamp()
  order by o.due_at
  limit $1::int
  for share of w skip locked) as t
left join {schema}.workflows_steps as s
  on s.workflow_id = t.workflow_id and s.name = t.name and s.run = t.run and s.state = 0
order by t.workflow_id, t.name
