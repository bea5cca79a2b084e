-- Up to $3 steps of a workflow after place $2, none after 8 MiB of results and errors, as stored; each
-- with the state of its job while that is not finished. If that is null and the step has not ended, the
-- step waits, or is about to end.
-- Index: the primary keys; all steps of the workflow. No locks. Safe to repeat.
select
  s.name, s.place, s.state, s.run, s.next || s.joins, s.on_failure, s.undoes, s.added_by, s.job_id, s.queue,
  s.func, {schema}.utc(s.finished_at), s.took_s, s.result::text, s.error::text,
  j.state, {schema}.utc(j.claimed_at), j.attempt,
  s.state = 0 and coalesce({schema}.workflows_ready($1::uuid, s.name, s.needs, s.previous), false)
from (
  select
    n.*, sum(coalesce(pg_column_size(n.result), 0) + coalesce(pg_column_size(n.error), 0)) over (
      order by n.place rows between unbounded preceding and 1 preceding) as bytes_before
  from (
    select o.*
    from {schema}.workflows_steps as o
    where o.workflow_id = $1::uuid
      and o.place > $2::int
    order by o.place
    limit $3::int) as n) as s
left join lateral (
  select o.state, o.claimed_at, o.attempt
  from {schema}.jobs as o
  where o.id = s.job_id
    and s.state = 0
  limit 1) as j on true
where coalesce(s.bytes_before, 0) < 8388608
order by s.place
