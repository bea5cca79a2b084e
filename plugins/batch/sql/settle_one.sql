-- Stores the success of jobs of one batch; see the function. Index: the primary keys.
-- Locks: the jobs of the batch in the order of the table, shards by shard, the batch, callbacks.
-- Safe to repeat.
select {schema}.batches_settle_one($1::uuid, $2::uuid[])
