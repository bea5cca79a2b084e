-- Starts a batch that was begun in this transaction: p_jobs jobs, counted in p_shards rows. A batch
-- without jobs that is not open has ended.
-- Index: the primary keys. Locks: the rows that it inserts, and the batch. Not to be repeated.
create function {schema}.batches_seal(p_id uuid, p_jobs int, p_shards int) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into {schema}.batches_shards (batch_id, shard, pending)
  select p_id, n, p_jobs / p_shards + case when n < p_jobs % p_shards then 1 else 0 end
  from generate_series(0, p_shards - 1) as n;
  if p_shards > 1 then
    update {schema}.batches b set shards = p_shards where b.id = p_id;
  end if;
  if p_jobs = 0 then
    perform {schema}.batches_finish(p_id);
  end if;
end
$$
