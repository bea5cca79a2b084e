create index finished_jobs_queue on {schema}.finished_jobs (queue, finished_at desc)
