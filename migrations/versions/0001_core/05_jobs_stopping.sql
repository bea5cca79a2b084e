-- Serves lookups of stop requests: it is nearly always empty.
create index jobs_stopping on {schema}.jobs (worker_id)
where state = 1 and stop_asked_at is not null
