-- Merges keys into the meta of running jobs; see the function. Index: the primary key of jobs.
-- Locks: rows of jobs, skipping locked ones. Safe to repeat.
select o_id, o_written
from {schema}.update_meta($1::uuid[], $2::uuid[], $3::text[])
