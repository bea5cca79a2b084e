-- Counts completions of jobs of a batch. Of several concurrent calls exactly one sees that nothing
-- is left, and that call ends the batch. p_ended: how many jobs counted as pending; the other
-- parameters: what is added to each count. All 0: check whether the batch has ended.
-- A transaction that subtracts from one shard leaves a remainder in it, under its lock until the
-- commit. A transaction that leaves no remainder in any shard has therefore locked all shards, and
-- there is no uncommitted completion that it does not see.
-- Index: the primary keys. Locks: a shard of the batch, or all of them by shard; then the batch and
-- its callbacks if it ends or something fails. Not to be repeated.
-- Called only by other functions, whose settings also apply here.
create function {schema}.batches_count(
  p_id uuid, p_ended int, p_succeeded int, p_failed int, p_cancelled int
) returns void
language plpgsql
as $$
declare
  v_shards int; v_state smallint; v_open boolean; v_added bigint; v_left bigint; v_own int;
begin
  select b.shards, b.state, b.open into v_shards, v_state, v_open
  from {schema}.batches b where b.id = p_id;
  if not found then
    return;
  end if;
  v_own := pg_backend_pid() % v_shards;
  if p_ended = 0 or not {schema}.batches_take(
      p_id, v_own, v_shards, p_ended, p_succeeded, p_failed, p_cancelled) then
    perform from {schema}.batches_shards s where s.batch_id = p_id order by s.shard for update;
    with added as (
      delete from {schema}.batches_added a where a.batch_id = p_id returning a.jobs)
    select coalesce(sum(a.jobs), 0) into v_added from added a;
    -- A separate statement: it sees everything that was committed before the locks were taken.
    select sum(s.pending) + v_added - p_ended into v_left
    from {schema}.batches_shards s where s.batch_id = p_id;
    update {schema}.batches_shards s
    set pending = v_left / v_shards + case when s.shard < v_left % v_shards then 1 else 0 end,
      succeeded = s.succeeded + case when s.shard = v_own then p_succeeded else 0 end,
      failed = s.failed + case when s.shard = v_own then p_failed else 0 end,
      cancelled = s.cancelled + case when s.shard = v_own then p_cancelled else 0 end
    where s.batch_id = p_id;
  end if;
  if p_failed > 0 then
    perform {schema}.batches_call(p_id, 2::smallint);
  end if;
  if v_left <= 0 then
    perform {schema}.batches_finish(p_id);
  end if;
end
$$
