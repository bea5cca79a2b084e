-- Serves the promoter: earliest due job first.
create index jobs_scheduled on {schema}.jobs (run_at) where state = 2
