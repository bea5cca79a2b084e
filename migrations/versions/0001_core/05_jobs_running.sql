-- Serves lookups of the claims of a worker.
create index jobs_running on {schema}.jobs (worker_id) where state = 1
