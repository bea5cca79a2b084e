-- Jobs that ended without success.
create index batches_jobs_ended on {schema}.batches_jobs (batch_id, job_id) where state <> 0
