-- Ends a batch all of whose jobs have ended, unless it is open, or makes a failed batch succeed:
-- pushes the callbacks that are due then, and notifies the waiting clients.
-- Index: the primary keys. Locks: the batch, callbacks; the caller has locked all shards of the
-- batch before. Safe to repeat.
create function {schema}.batches_finish(p_id uuid) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_succeeded bigint; v_failed bigint; v_cancelled bigint; v_state smallint;
begin
  select sum(s.succeeded), sum(s.failed), sum(s.cancelled) into v_succeeded, v_failed, v_cancelled
  from {schema}.batches_shards s where s.batch_id = p_id;
  update {schema}.batches b
  set finished_at = clock_timestamp(), state = case
    when v_failed = 0 and v_cancelled = 0 and (b.stop_asked_at is null or v_succeeded > 0) then 4
    when v_failed = 0 or b.stop_asked_at is not null and v_cancelled > 0 then 6
    else 5 end
  where b.id = p_id and not b.open
    and (b.state = 1 or b.state = 5 and v_failed = 0 and v_cancelled = 0)
  returning b.state into v_state;
  if not found then
    return;
  end if;
  perform {schema}.batches_call(p_id, 3::smallint);
  if v_state = 4 then
    perform {schema}.batches_call(p_id, 1::smallint);
  end if;
  perform {schema}.notify_finished(a.id) from {schema}.awaited a where a.id = p_id;
end
$$
