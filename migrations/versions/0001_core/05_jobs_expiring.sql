-- Serves the search for expired jobs: most jobs have no entry.
create index jobs_expiring on {schema}.jobs (expires_at)
where expires_at is not null and state <> 1 and attempt = 0 and crashes = 0
