-- Closes a batch to further jobs, and with p_stop asks its jobs to stop. Returns false if no such
-- batch is running. The caller then calls batches_count in a transaction of its own, since the
-- batch may have ended.
-- Index: the primary key. Locks: the batch; the function waits for it until the transactions that
-- add jobs to the batch have ended. Safe to repeat.
create function {schema}.batches_close(p_id uuid, p_stop boolean) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  update {schema}.batches b
  set open = false,
    stop_asked_at = case when p_stop then coalesce(b.stop_asked_at, clock_timestamp())
      else b.stop_asked_at end
  where b.id = p_id and b.state = 1
    and (b.open or p_stop and b.stop_asked_at is null);
  return exists (select from {schema}.batches b where b.id = p_id and b.state = 1);
end
$$
