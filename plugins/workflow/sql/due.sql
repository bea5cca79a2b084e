-- Up to $1 due timers, with the outcomes for their steps, and whether the steps still wait.
-- Index: workflows_timers_due, the primary keys. No locks. Safe to repeat.
select
  t.workflow_id, t.name, t.run, s.job_id, s.delay_s, s.arguments ? 'cancel',
  s.arguments ? 'default', (s.arguments -> 'default')::text, coalesce(w.state = 1, false)
from (
  select o.workflow_id, o.name, o.run
  from {schema}.workflows_timers as o
  where o.due_at <= clock_timestamp()
  order by o.due_at
  limit $1::int) as t
left join {schema}.workflows_steps as s
  on s.workflow_id = t.workflow_id and s.name = t.name and s.run = t.run and s.state = 0
left join {schema}.workflows as w on w.id = s.workflow_id
order by t.workflow_id, t.name
