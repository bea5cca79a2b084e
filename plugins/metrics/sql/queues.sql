-- By queue: pending jobs, up to 10,000, the seconds for which the oldest has waited, taking the first of
-- each priority for its oldest, running jobs, up to 10,000 of all, and scheduled ones of the next
-- 10,000. Index: jobs_pending by a loose scan of its queues and priorities, up to 10,000 of them,
-- jobs_running, jobs_scheduled. No locks. Safe to repeat.
with recursive fronts (queue, priority, since) as (
  (
    select j.queue, j.priority, greatest(j.pushed_at, j.run_at)
    from {schema}.jobs as j
    where j.state = 0
    order by j.queue, j.priority desc, j.pos
    limit 1)
  union all
  select n.queue, n.priority, n.since
  from fronts as f
  cross join lateral (
    (
      select j.queue, j.priority, greatest(j.pushed_at, j.run_at) as since
      from {schema}.jobs as j
      where j.state = 0 and j.queue = f.queue and j.priority < f.priority
      order by j.priority desc, j.pos
      limit 1)
    union all
    (
      select j.queue, j.priority, greatest(j.pushed_at, j.run_at)
      from {schema}.jobs as j
      where j.state = 0 and j.queue > f.queue
      order by j.queue, j.priority desc, j.pos
      limit 1)
    limit 1) as n),
waiting as (
  select f.queue, extract(epoch from clock_timestamp() - min(f.since))::float8 as oldest_s
  from (select * from fronts limit 10000) as f
  group by f.queue)
select 'oldest', w.queue, greatest(w.oldest_s, 0) from waiting as w
union all
select 'pending', w.queue, (
    select count(*)::float8
    from (select from {schema}.jobs as j where j.state = 0 and j.queue = w.queue limit 10000) as c)
from waiting as w
union all
select 'running', r.queue, count(*)::float8
from (select j.queue from {schema}.jobs as j where j.state = 1 limit 10000) as r
group by r.queue
union all
select 'scheduled', s.queue, count(*)::float8
from (
  select j.queue from {schema}.jobs as j where j.state = 2 order by j.run_at limit 10000) as s
group by s.queue
