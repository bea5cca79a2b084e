-- Serves the sweep: jobs whose state is requested from another broker.
create index batches_jobs_away on {schema}.batches_jobs (batch_id, job_id) where state = 0 and away
