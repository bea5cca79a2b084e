-- Makes due jobs pending; see the function. Index: jobs_scheduled. Locks: rows of jobs by time,
-- skipping locked ones. Safe to repeat.
select promoted, next_due_s, reached, ahead
from {schema}.promote($1::int, $2::float8, $3::uuid)
