-- Removes steps that need no tracking in another broker any more: $1 workflows, $2 jobs.
-- Index: the primary key. Locks: the rows. Safe to repeat.
delete from {schema}.workflows_away as a
using unnest($1::uuid[], $2::uuid[]) as u (id, job)
where a.workflow_id = u.id
  and a.job_id = u.job
