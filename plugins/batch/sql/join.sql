-- Adds jobs that were pushed in this transaction to a batch, which counts them when it is sealed, or
-- by batches_added. Returns how many. $3: their queues.
-- Index: the primary key. Locks: what it inserts. Not to be repeated.
with added as (
  insert into {schema}.batches_jobs (batch_id, job_id)
  select $1::uuid, u.id
  from unnest($2::uuid[]) as u (id)
  returning job_id)
select count(*), {schema}.check_counted($3::text[], 'a job of a batch')::text
from added
