-- Claims pending jobs; see the function. Index: jobs_pending. Locks: rows of jobs by priority and
-- position, skipping locked ones. Repeated with another lease, it claims other jobs.
select id, priority, pos, func, arguments::text, attempt, max_attempts, crashes, meta, limits,
  waited_s
from {schema}.claim($1::uuid, $2::uuid, $3::text, $6::int, $7::bigint, $4::text::int[],
  $5::text::bigint[], $8::boolean)
