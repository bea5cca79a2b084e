-- The running jobs of a worker that were requested to stop, and the worker itself if it was. Index:
-- jobs_stopping, the primary key of workers. No locks. Safe to repeat.
select id
from {schema}.jobs
where state = 1
  and worker_id = $1::uuid
  and stop_asked_at is not null
union all
select id
from {schema}.workers
where id = $1::uuid
  and stop_asked_at is not null
