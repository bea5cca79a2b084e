-- Claims pending jobs from the front of every priority, and then returns a row without an id for each
-- function of which jobs were set aside; see the functions. A statement of its own, so that the plan
-- of the other claims stays generic.
-- Index: jobs_pending, jobs_set_aside. Locks: rows of jobs by priority and position, skipping locked
-- ones. Repeated with another lease, it claims other jobs.
select id, priority, pos, func, arguments::text, attempt, max_attempts, crashes, meta, limits,
  waited_s
from {schema}.claim($1::uuid, $2::uuid, $3::text, $4::int, $5::bigint, '{}'::int[], '{}'::bigint[],
  true)
union all
select null, null, null, func, null, null, null, null, null, null, null
from {schema}.set_aside($3::text, $6::int) as set_aside (func)
