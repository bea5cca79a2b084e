create index finished_jobs_id on {schema}.finished_jobs (id)
