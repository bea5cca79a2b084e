-- Merges keys into the meta of running jobs; see the function. Index: the primary key of jobs.
-- Locks: rows of jobs in the given order. Safe to repeat.
select update_meta
from {schema}.update_meta($1::uuid[], $2::uuid[], $3::text[])
