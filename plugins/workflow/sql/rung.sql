-- Deletes timers: $1 workflows, $2 steps, $3 runs. Index: the primary key. Locks: the rows.
-- Safe to repeat.
delete from {schema}.workflows_timers as t
using unnest($1::uuid[], $2::text[], $3::int[]) as u (id, name, run)
where t.workflow_id = u.id
  and t.name = u.name
  and t.run = u.run
