-- Stores outcomes of jobs of batches; see the function. Index: the primary keys.
-- Locks: the jobs of batches in the order of the table, shards by batch and shard, batches, callbacks.
-- Safe to repeat.
select {schema}.batches_settle($1::uuid[], $2::uuid[], $3::smallint[], $4::uuid[])
