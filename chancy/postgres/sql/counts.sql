-- Counts unfinished jobs by queue and state: up to 100,001 pending jobs of each queue, and as many of
-- each other state in all queues together. Index: jobs_pending by a
-- loose scan of its queues, jobs_running, jobs_scheduled, jobs_held. No locks. Safe to repeat.
with recursive waiting (queue) as (
  (
    select j.queue
    from {schema}.jobs as j
    where j.state = 0
    order by j.queue
    limit 1)
  union all
  select (
    select j.queue
    from {schema}.jobs as j
    where j.state = 0
      and j.queue > w.queue
    order by j.queue
    limit 1)
  from waiting as w
  where w.queue is not null)
select w.queue, 0, (
    select count(*)
    from (
      select
      from {schema}.jobs as j
      where j.state = 0
        and j.queue = w.queue
      limit 100001) as capped)
from waiting as w
where w.queue is not null
union all
select r.queue, 1, count(*)
from (
  select j.queue
  from {schema}.jobs as j
  where j.state = 1
  limit 100001) as r
group by r.queue
union all
select s.queue, 2, count(*)
from (
  select j.queue
  from {schema}.jobs as j
  where j.state = 2
  limit 100001) as s
group by s.queue
union all
select h.queue, 3, count(*)
from (
  select j.queue
  from {schema}.jobs as j
  where j.state + 0 = 3
  limit 100001) as h
group by h.queue
