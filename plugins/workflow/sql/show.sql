-- The steps of a workflow behind ($2), by place, at most $3 of them, each with the state of its job
-- while that is not finished; a null there and a state of 0: it waits, or, says the last column, another
-- broker has its job.
-- Index: the primary keys; all steps of the workflow. No locks. Safe to repeat.
select
  s.name, s.place, s.state, s.run, s.next, s.on_failure, s.undoes, s.added_by, s.job_id, s.queue,
  s.func, {schema}.utc(s.finished_at), s.took_s, s.result::text, s.error::text,
  j.state, {schema}.utc(j.claimed_at), j.attempt,
  s.state = 0 and coalesce({schema}.workflows_ready($1::uuid, s.name, s.needs, s.previous), false),
  a.job_id is not null
from {schema}.workflows_steps as s
left join {schema}.jobs as j on j.id = s.job_id and s.state = 0
left join {schema}.workflows_away as a
  on a.workflow_id = $1::uuid and a.job_id = s.job_id and s.state = 0
where s.workflow_id = $1::uuid
  and s.place > $2::int
order by s.place
limit $3::int
