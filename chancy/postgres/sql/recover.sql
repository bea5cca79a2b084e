-- The jobs of a claim whose response was lost. Index: jobs_running. No locks. Safe to repeat.
select
  id, priority, pos, func, arguments::text, attempt, max_attempts, crashes, meta::text,
  limits::text
from {schema}.jobs
where state = 1
  and worker_id = $1::uuid
  and lease = $2::uuid
