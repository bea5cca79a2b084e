-- Deletes timers that are due: $1 workflows, $2 steps, $3 runs. One that has begun anew since it was looked
-- at stays. Index: the primary key. Locks: the rows by workflow and name. Safe to repeat.
delete from {schema}.workflows_timers as t
using (
  select o.workflow_id, o.name, o.run
  from unnest($1::uuid[], $2::text[], $3::int[]) as u (id, name, run)
  join {schema}.workflows_timers as o on o.workflow_id = u.id and o.name = u.name and o.run = u.run
  where o.due_at <= clock_timestamp()
  order by o.workflow_id, o.name
  for update of o) as d
where t.workflow_id = d.workflow_id
  and t.name = d.name
  and t.run = d.run
