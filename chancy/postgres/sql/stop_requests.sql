-- The running jobs of a worker that were requested to stop. Index: jobs_stopping. No locks.
-- Safe to repeat.
select id
from {schema}.jobs
where state = 1
  and worker_id = $1::uuid
  and stop_asked_at is not null
