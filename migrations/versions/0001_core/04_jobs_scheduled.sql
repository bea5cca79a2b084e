-- What the promoter reads: the earliest first.
create index jobs_scheduled on {schema}.jobs (run_at) where state = 2
