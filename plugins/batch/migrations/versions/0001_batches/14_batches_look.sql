-- Ends a batch if all of its jobs have ended, and moves added jobs into the counts of its shards.
-- Index: the primary keys. Locks: all shards of the batch, by shard; then the batch and its
-- callbacks.
-- Safe to repeat.
create function {schema}.batches_look(p_id uuid) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
begin
  perform {schema}.batches_count(p_id, 0, 0, 0, 0);
end
$$
