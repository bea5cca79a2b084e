-- Queues and functions of jobs that were set aside, up to 100 functions of each of 100 queues.
-- Index: jobs_set_aside, by a loose scan. No locks. Safe to repeat.
with recursive aside (queue) as (
  (
    select j.queue
    from {schema}.jobs as j
    where j.state = 3
      and j.meta ? 'unknown_function'
    order by j.queue
    limit 1)
  union all
  select (
    select j.queue
    from {schema}.jobs as j
    where j.state = 3
      and j.meta ? 'unknown_function'
      and j.queue > a.queue
    order by j.queue
    limit 1)
  from aside as a
  where a.queue is not null)
select a.queue, s.func
from (select queue from aside where queue is not null limit 100) as a
cross join lateral {schema}.set_aside(a.queue, 100) as s (func)
