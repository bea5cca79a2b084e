-- The time in seconds since 1970, and of scheduled jobs (2) and jobs that were set aside (3) how many
-- there are in each queue, of up to 10,001 of each state. Index: jobs_scheduled, jobs_set_aside. No
-- locks. Safe to repeat.
select null, 0, extract(epoch from clock_timestamp())::float8
union all
select s.queue, 2, count(*)
from (
  select j.queue
  from {schema}.jobs as j
  where j.state = 2
  order by j.run_at
  limit 10001) as s
group by s.queue
union all
select h.queue, 3, count(*)
from (
  select j.queue
  from {schema}.jobs as j
  where j.state = 3
    and j.meta ? 'unknown_function'
  limit 10001) as h
group by h.queue
