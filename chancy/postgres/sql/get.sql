-- Jobs by id, unfinished and finished; see the function. Index: the primary key of jobs,
-- finished_jobs_id. No locks. Safe to repeat.
select
  id, func, arguments, queue, priority, state, attempt, max_attempts, crashes, run_at, worker_id,
  meta, errors, result, pushed_at, claimed_at, finished_at, stop_asked_at, limits,
  expires_at
from {schema}.jobs_by_id($1::uuid[])
