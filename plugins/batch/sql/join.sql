-- Adds jobs that were pushed in this transaction to a batch, which counts them when it is sealed, or
-- by batches_added. Returns how many.
-- Index: the primary keys. Locks: what it inserts. Not to be repeated.
with added as (
  insert into {schema}.batches_jobs (batch_id, job_id)
  select $1::uuid, u.id
  from unnest($2::uuid[]) as u (id)
  returning job_id)
select count(*), (
  select {schema}.check_counted(
    array(select distinct j.queue from {schema}.jobs as j where j.id = any ($2::uuid[])),
    'a job of a batch')
  where exists (
    select from {schema}.queues as q where q.broker <> 'postgres' and q.rules is not null))
from added
