-- Releases held jobs: up to $3 of those on hold with the key $2, or the jobs $1; see the function.
-- Index: the primary key of jobs, or jobs_on_hold. Locks: rows of jobs, skipping locked ones. Safe to
-- repeat.
select release
from {schema}.release(key => $2::text, ids => $1::uuid[], most => $3::int)
