-- By queue: pending and held jobs, the seconds for which the oldest of them has waited, running jobs of
-- 10,000, and scheduled jobs of the 10,000 that are due next. Each with whether there may be more than
-- were counted; see the function for the first three. Index: jobs_running, jobs_scheduled, those of
-- the function. No locks. Safe to repeat.
with due as materialized (
  select b.queue, b.oldest_s, b.cap, b.pending, b.held from {schema}.backlog() as b),
running as materialized (
  select j.queue from {schema}.jobs as j where j.state = 1 limit 10001),
scheduled as materialized (
  select j.queue from {schema}.jobs as j where j.state = 2 order by j.run_at limit 10001)
select 'oldest', d.queue, d.oldest_s, false from due as d
union all
select 'pending', d.queue, least(d.pending, d.cap)::float8, d.pending > d.cap from due as d
union all
select 'held', d.queue, least(d.held, d.cap)::float8, d.held > d.cap from due as d
union all
select 'running', r.queue, count(*)::float8, (select count(*) > 10000 from running)
from running as r
group by r.queue
union all
select 'scheduled', s.queue, count(*)::float8, (select count(*) > 10000 from scheduled)
from scheduled as s
group by s.queue
