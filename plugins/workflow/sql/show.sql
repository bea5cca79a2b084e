-- Up to $3 steps of a workflow after place $2, each with the state of its job while that is not
-- finished. If that is null and the step has not ended, the step waits, or is about to end.
-- Index: the primary keys; all steps of the workflow. No locks. Safe to repeat.
select
  s.name, s.place, s.state, s.run, s.next || s.joins, s.on_failure, s.undoes, s.added_by, s.job_id, s.queue,
  s.func, {schema}.utc(s.finished_at), s.took_s, s.result::text, s.error::text,
  j.state, {schema}.utc(j.claimed_at), j.attempt,
  s.state = 0 and coalesce({schema}.workflows_ready($1::uuid, s.name, s.needs, s.previous), false)
from (
  select o.*
  from {schema}.workflows_steps as o
  where o.workflow_id = $1::uuid
    and o.place > $2::int
  order by o.place
  limit $3::int) as s
left join lateral (
  select o.state, o.claimed_at, o.attempt
  from {schema}.jobs as o
  where o.id = s.job_id
    and s.state = 0
  limit 1) as j on true
order by s.place
