-- Up to $3 steps after ($1, $2), by workflow and job, whose jobs are in another broker, with the
-- state of the workflow, and whether the step has not ended in this run.
-- Index: the primary keys. No locks. Safe to repeat.
select a.workflow_id, a.job_id, a.name, a.run, w.state, s.name is not null
from (
  select o.workflow_id, o.job_id, o.name, o.run
  from {schema}.workflows_away as o
  where (o.workflow_id, o.job_id) > (
    coalesce($1::uuid, '00000000-0000-0000-0000-000000000000'),
    coalesce($2::uuid, '00000000-0000-0000-0000-000000000000'))
  order by o.workflow_id, o.job_id
  limit $3::int) as a
left join {schema}.workflows as w on w.id = a.workflow_id
left join {schema}.workflows_steps as s
  on s.workflow_id = a.workflow_id and s.name = a.name and s.run = a.run and s.state = 0
order by a.workflow_id, a.job_id
