-- Running and scheduled jobs, and those that were set aside, by queue and state; up to $1 of each
-- state. Index: jobs_running, jobs_scheduled, jobs_set_aside. No locks. Safe to repeat.
select r.queue, 1, count(*)
from (
  select j.queue
  from {schema}.jobs as j
  where j.state = 1
  limit $1::int) as r
group by r.queue
union all
select s.queue, 2, count(*)
from (
  select j.queue
  from {schema}.jobs as j
  where j.state = 2
  limit $1) as s
group by s.queue
union all
select h.queue, 3, count(*)
from (
  select j.queue
  from {schema}.jobs as j
  where j.state = 3
    and j.meta ? 'unknown_function'
  limit $1) as h
group by h.queue
