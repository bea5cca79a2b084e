-- Creates the partitions of the next days; see the function. Locks: finished_jobs, for 100 ms at
-- most. Safe to repeat.
select {schema}.make_days($1::int)
