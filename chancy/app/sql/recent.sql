-- Of the last 40 jobs of each of 250 queues that finished within ten minutes: the functions with the
-- longest runs, and the latest failures; five of each, as JSON. Index: finished_jobs_queue. No locks.
-- Safe to repeat.
with sample as materialized (
  select q.name as queue, f.func, f.state, f.claimed_at, f.finished_at,
    case when f.state = 5 then f.errors -> -1 end as error
  from (select name from {schema}.queues order by name limit 250) as q
  cross join lateral (
    select f.func, f.state, f.claimed_at, f.finished_at, f.errors
    from {schema}.finished_jobs as f
    where f.queue = q.name
      and f.finished_at > statement_timestamp() - interval '10 min'
    order by f.finished_at desc
    limit 40) as f)
select
  (
    select json_agg(json_build_array(t.func, t.jobs, t.failed, t.mean_s, t.longest_s))::text
    from (
      select
        s.func,
        count(*) as jobs,
        count(*) filter (where s.state = 5) as failed,
        avg(extract(epoch from s.finished_at - s.claimed_at))::float8 as mean_s,
        max(extract(epoch from s.finished_at - s.claimed_at))::float8 as longest_s
      from sample as s
      where isfinite(s.claimed_at)
      group by s.func
      order by longest_s desc, s.func
      limit 5) as t),
  (
    select json_agg(json_build_array(
      t.func, t.queue, extract(epoch from clock_timestamp() - t.finished_at),
      t.error #>> '{types,0}', left(t.error ->> 'message', 200)))::text
    from (
      select s.func, s.queue, s.finished_at, s.error
      from sample as s
      where s.state = 5
      order by s.finished_at desc
      limit 5) as t)
