-- Serves claims: one queue, highest priority first, in order of position.
create index jobs_pending on {schema}.jobs (queue, priority desc, pos) where state = 0
