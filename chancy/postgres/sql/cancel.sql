-- Cancels waiting jobs and requests running ones to stop; see the function. Index: the primary key.
-- Locks: rows of jobs, skipping locked ones. Safe to repeat.
select id, what
from {schema}.cancel($1::uuid[])
