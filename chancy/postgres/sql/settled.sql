-- Which attempts were settled under these leases before. Index: finished_jobs_id, the primary key
-- of jobs. No locks. Safe to repeat.
select settled
from {schema}.settled($1::uuid[], $2::uuid[])
