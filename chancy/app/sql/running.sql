-- Up to 10,001 running jobs by worker, queue and function: their number, and the seconds since the
-- first of them was claimed. Index: jobs_running. No locks. Safe to repeat.
select
  r.worker_id, r.queue, r.func, count(*),
  (extract(epoch from clock_timestamp()) - extract(epoch from min(r.claimed_at)))::float8
from (
  select j.worker_id, j.queue, j.func, j.claimed_at
  from {schema}.jobs as j
  where j.state = 1
  limit 10001) as r
group by r.worker_id, r.queue, r.func
order by 5 desc
