-- Jobs that rules of their queue hold, by queue; up to $1. Index: jobs_limits_held. No locks. Safe to
-- repeat.
select h.queue, count(*)
from (
  select j.queue
  from {schema}.jobs as j
  where j.state = 3
    and j.meta ? 'limits'
  limit $1::int) as h
group by h.queue
