-- Claims pending jobs that are not being moved to Redis; see the function redis_claim. Also returns a
-- row without an id for each function of which jobs were set aside, after the claims.
-- Index: jobs_pending, jobs_set_aside, the primary keys. Locks: see the function. With another lease
-- it claims other jobs.
select id, priority, pos, func, arguments::text, attempt, max_attempts, crashes, meta, limits,
  waited_s
from {schema}.redis_claim($1::uuid, $2::uuid, $3::text, $4::int)
union all
select null, null, null, func, null, null, null, null, null, null, null
from {schema}.set_aside($3::text, 500) as set_aside (func)
