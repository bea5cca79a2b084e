-- Queues that have finished jobs, at most $1; see the function. Index: finished_jobs_queue. No
-- locks. Safe to repeat.
select pruner_queues
from {schema}.pruner_queues($1::int)
