-- Jobs that rules hold, by queue; up to $1 of each. Index: jobs_limits_held, by a loose scan of its
-- queues. No locks. Safe to repeat.
with recursive ruled (queue) as (
  (
    select j.queue
    from {schema}.jobs as j
    where j.state = 3
      and j.meta ? 'limits'
    order by j.queue
    limit 1)
  union all
  select (
    select j.queue
    from {schema}.jobs as j
    where j.state = 3
      and j.meta ? 'limits'
      and j.queue > r.queue
    order by j.queue
    limit 1)
  from ruled as r
  where r.queue is not null)
select r.queue, (
    select count(*)
    from (
      select
      from {schema}.jobs as j
      where j.state = 3
        and j.meta ? 'limits'
        and j.queue = r.queue
      order by j.meta #>> '{limits,partition}', j.priority desc, j.pos
      limit $1::int) as capped)
from ruled as r
where r.queue is not null
