-- Ends a batch if all of its jobs have ended; see the function. Index: the primary keys.
-- Locks: all shards of the batch, by shard; then the batch. Safe to repeat.
select {schema}.batches_look($1::uuid)
