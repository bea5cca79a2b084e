-- Every declared queue, and every queue with pending jobs: its pending jobs, up to $1, and the
-- seconds for which the oldest one has been due. Index: jobs_pending, by a loose scan of its queues
-- and of the priorities of each. No locks. Safe to repeat.
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
    where j.state = 0 and j.queue > w.queue
    order by j.queue
    limit 1)
  from waiting as w
  where w.queue is not null)
select
  a.queue,
  (
    select count(*)
    from (
      select
      from {schema}.jobs as j
      where j.state = 0 and j.queue = a.queue
      limit $1::int) as capped),
  (
    with recursive fronts (priority, due_at) as (
      (
        select j.priority, greatest(j.pushed_at, j.run_at)
        from {schema}.jobs as j
        where j.state = 0 and j.queue = a.queue
        order by j.priority desc, j.pos
        limit 1)
      union all
      select n.priority, n.due_at
      from fronts as f
      cross join lateral (
        select j.priority, greatest(j.pushed_at, j.run_at) as due_at
        from {schema}.jobs as j
        where j.state = 0 and j.queue = a.queue and j.priority < f.priority
        order by j.priority desc, j.pos
        limit 1) as n)
    select extract(epoch from clock_timestamp() - min(f.due_at))::float8
    from fronts as f)
from (
  select q.name as queue
  from {schema}.queues as q
  union
  select w.queue
  from waiting as w
  where w.queue is not null) as a
order by a.queue
