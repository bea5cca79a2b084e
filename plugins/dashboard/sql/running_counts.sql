-- Running jobs by queue, of up to $1 of all queues together: workers run no more than they have
-- slots for.
-- Index: jobs_running. No locks. Safe to repeat.
select r.queue, count(*)
from (
  select j.queue
  from {schema}.jobs as j
  where j.state = 1
  limit $1::int) as r
group by r.queue
