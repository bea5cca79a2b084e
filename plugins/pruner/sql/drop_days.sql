-- Drops the partitions of days that ended more than $1 days ago, and deletes a batch of such rows of
-- the default one; see the function. Locks: those partitions, rows and finished_jobs, for 100 ms at
-- most. Safe to repeat.
select drop_days
from {schema}.drop_days($1::int)
