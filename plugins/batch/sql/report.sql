-- Stores outcomes of jobs of batches that no settlement has reported; see the function. It waits for a
-- lock for half a second at most. Index: the primary keys.
-- Locks: the jobs of batches in the order of the table, shards by batch and shard, batches, callbacks.
-- Safe to repeat.
select
  set_config('lock_timeout', '500ms', true),
  {schema}.batches_settle($1::uuid[], $2::uuid[], $3::smallint[], $4::uuid[])
