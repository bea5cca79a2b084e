-- The position of an unfinished job: the number of pending jobs before it in its queue (up to
-- 10,001), the number of running jobs of its queue (up to 10,001), the seconds until it is due,
-- since it was claimed, and since it could have run; and for a pending job up to five of the
-- running ones, as JSON, the longest running first. Index: the primary key of jobs, jobs_pending,
-- jobs_running. No locks. Safe to repeat.
select
  case when j.state = 0 then (
    select count(*)
    from (
      (
        select from {schema}.jobs as a
        where a.state = 0 and a.queue = j.queue and a.priority > j.priority
        limit 10001)
      union all
      (
        select from {schema}.jobs as a
        where a.state = 0 and a.queue = j.queue and a.priority = j.priority and a.pos < j.pos
        limit 10001)
      limit 10001) as before)
  else 0 end,
  (
    select count(*)
    from (
      select from {schema}.jobs as r
      where r.state = 1 and r.queue = j.queue
      limit 10001) as running),
  coalesce(extract(epoch from j.run_at) - extract(epoch from clock_timestamp()), 0)::float8,
  coalesce(extract(epoch from clock_timestamp()) - extract(epoch from j.claimed_at), 0)::float8,
  greatest(
    0,
    extract(epoch from clock_timestamp())
      - extract(epoch from greatest(j.pushed_at, j.run_at))
  )::float8,
  case when j.state = 0 then (
    select json_agg(json_build_array(
      h.id, h.func, h.worker_id,
      least(extract(epoch from clock_timestamp()) - extract(epoch from h.claimed_at), 1e9)))::text
    from (
      select r.*
      from (
        select r.id, r.func, r.worker_id, r.claimed_at
        from {schema}.jobs as r
        where r.state = 1 and r.queue = j.queue
        limit 10001) as r
      order by r.claimed_at, r.id
      limit 5) as h)
  end
from {schema}.jobs as j
where j.id = $1::uuid
