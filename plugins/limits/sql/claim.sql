-- Claims jobs of a queue with rules; see the function. Repeated with another lease, it claims other
-- jobs.
select id, priority, pos, func, arguments::text, attempt, max_attempts, crashes, meta, limits,
  waited_s
from {schema}.limits_claim($1::uuid, $2::uuid, $3::text, $4::int)
