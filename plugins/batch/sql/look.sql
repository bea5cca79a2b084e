-- Ends a batch if all of its jobs have ended; see the function. It waits for a lock for half a second
-- at most. Index: the primary keys.
-- Locks: all shards of the batch, by shard; then the batch. Safe to repeat.
select set_config('lock_timeout', '500ms', true), {schema}.batches_look($1::uuid)
