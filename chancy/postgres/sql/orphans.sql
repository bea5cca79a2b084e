-- Deletes workers that missed heartbeats and returns some of their claims; see the function. Index:
-- jobs_running. Locks: rows of workers, skipping locked ones. Safe to repeat.
select
  id, priority, pos, func, arguments, attempt, max_attempts, crashes, meta, queue, lease, worker_id
from {schema}.orphans($1::float8, $2::int)
