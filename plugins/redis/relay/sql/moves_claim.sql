-- Claims pending jobs that are not being moved to Redis; see the function redis_claim. Index:
-- jobs_pending, the primary keys. Locks: see the function. With another lease it claims other jobs.
select id, priority, pos, func, arguments, attempt, max_attempts, crashes, meta, limits
from {schema}.redis_claim($1::uuid, $2::uuid, $3::text, $4::int)
