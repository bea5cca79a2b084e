-- Creates the partitions of the day $1 days ahead; see the function. Locks: finished_jobs and its
-- default partition, waiting 100 ms at most. Safe to repeat.
select {schema}.make_days($1::int, $1::int)
