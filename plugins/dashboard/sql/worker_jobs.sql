-- Of each of the workers $1 the number of its running jobs, up to $2, and the jobs that have been
-- running longest, up to $3, with their progress. Index: jobs_running. No locks. Safe to repeat.
select
  w.id, c.jobs, r.id, r.func, r.queue, r.attempt, r.max_attempts, {schema}.utc(r.claimed_at),
  r.stop_asked_at is not null, r.progress
from unnest($1::uuid[]) as w (id)
cross join lateral (
  select count(*) as jobs
  from (
    select
    from {schema}.jobs as j
    where j.worker_id = w.id and j.state = 1
    limit $2::int) as capped) as c
left join lateral (
  select
    o.id, o.func, o.queue, o.attempt, o.max_attempts, o.claimed_at, o.stop_asked_at,
    (o.meta -> 'progress')::text as progress
  from (
    select *
    from {schema}.jobs as j
    where j.worker_id = w.id and j.state = 1
    limit $2) as o
  order by o.claimed_at, o.id
  limit $3::int) as r on true
order by w.id, r.claimed_at, r.id
