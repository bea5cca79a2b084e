-- Covers a job in all of its unfinished states, so that no change of state can conflict.
create unique index jobs_unique on {schema}.jobs (unique_key) where unique_key is not null
