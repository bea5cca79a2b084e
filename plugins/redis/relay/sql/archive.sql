-- Writes finished jobs $1, an array of objects, to the history; see the function.
-- Index: finished_jobs_id of each day. Locks: an advisory lock. Safe to repeat.
select {schema}.redis_archive($1::text::jsonb)
