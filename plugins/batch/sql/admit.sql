-- Whether jobs can be added to a batch, and how many it has; see the function. Index: the primary
-- keys. Locks: the row of the job, or of the batch, in share mode. Safe to repeat.
select said, jobs
from {schema}.batches_admit($1::uuid, $2::uuid, $3::uuid)
