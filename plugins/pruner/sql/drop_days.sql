-- Drops a partition of a day that ended more than $1 days ago, or deletes a batch of such rows of the
-- default one; see the function. Locks: that partition, or rows, and finished_jobs, waiting 100 ms at
-- most. Safe to repeat.
select drop_days
from {schema}.drop_days($1::int)
