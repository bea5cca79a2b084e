-- Serves the sweep: the jobs of batches that have not ended.
create index batches_jobs_going on {schema}.batches_jobs (batch_id, job_id) where state = 0
