-- Lets a batch get no more jobs, and with p_stop ask its jobs to stop. False: there is none that runs.
-- Whoever calls it calls batches_count in a transaction of its own then: it may have ended.
-- Index: the primary key. Locks: the batch, for which it waits until those have ended who add to it.
-- Safe to repeat.
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
