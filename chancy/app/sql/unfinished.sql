-- The time in seconds since 1970, and how many scheduled jobs there are in each queue, of up to 10,001.
-- Index: jobs_scheduled. No locks. Safe to repeat.
select null, extract(epoch from clock_timestamp())::float8
union all
select s.queue, count(*)
from (
  select j.queue
  from {schema}.jobs as j
  where j.state = 2
  order by j.run_at
  limit 10001) as s
group by s.queue
