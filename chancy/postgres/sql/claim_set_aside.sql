-- Claims jobs of functions that were set aside; see the function. Index: jobs_set_aside. Locks: rows
-- of jobs by function, priority and position, skipping locked ones. Repeated with another lease, it
-- claims other jobs.
select id, priority, pos, func, arguments::text, attempt, max_attempts, crashes, meta, limits,
  waited_s
from {schema}.claim_set_aside($1::uuid, $2::uuid, $3::text, $4::int, $5::text[],
  $6::bigint)
