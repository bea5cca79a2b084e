-- Held for the whole unfinished life of a job, so that no change of its state can conflict.
create unique index jobs_unique on {schema}.jobs (unique_key) where unique_key is not null
