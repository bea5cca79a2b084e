-- Which attempts have been settled under these leases. Index: finished_jobs_id, the primary key of
-- jobs. No locks. Safe to repeat.
select settled
from {schema}.settled($1::uuid[], $2::uuid[])
