-- Counts completions in one shard of a batch that has more pending jobs than these: then they are
-- not the last. Returns false if there is no such shard, and then holds no lock on a shard, except
-- possibly that of a batch with one shard. The function starts at p_shard and skips shards that
-- other transactions hold, so that it does not wait as long as a free shard fits.
-- Index: the primary key of batches_shards. Locks: the row of the shard. Not to be repeated.
-- Called by batches_count alone, whose settings also apply here.
create function {schema}.batches_take(
  p_id uuid, p_shard int, p_shards int, p_ended int, p_succeeded int, p_failed int, p_cancelled int
) returns boolean
language plpgsql
as $$
declare
  v_shard int;
begin
  if p_shards = 1 then
    update {schema}.batches_shards s
    set pending = s.pending - p_ended, succeeded = s.succeeded + p_succeeded,
      failed = s.failed + p_failed, cancelled = s.cancelled + p_cancelled
    where s.batch_id = p_id and s.shard = 0 and s.pending > p_ended;
    return found;
  end if;
  begin
    select s.shard into v_shard
    from {schema}.batches_shards s
    where s.batch_id = p_id and s.pending > p_ended
    order by (s.shard - p_shard + p_shards) % p_shards
    limit 1
    for update skip locked;
    -- A row that was changed meanwhile stays locked although it no longer fits. A transaction that
    -- waits for a shard must not hold one, or two of them could wait for each other: the exception
    -- releases the lock.
    if v_shard is null then
      raise exception using errcode = 'CB001';
    end if;
    update {schema}.batches_shards s
    set pending = s.pending - p_ended, succeeded = s.succeeded + p_succeeded,
      failed = s.failed + p_failed, cancelled = s.cancelled + p_cancelled
    where s.batch_id = p_id and s.shard = v_shard;
    return true;
  exception when sqlstate 'CB001' then
  end;
  begin
    update {schema}.batches_shards s
    set pending = s.pending - p_ended, succeeded = s.succeeded + p_succeeded,
      failed = s.failed + p_failed, cancelled = s.cancelled + p_cancelled
    where s.batch_id = p_id and s.shard = p_shard and s.pending > p_ended;
    if found then
      return true;
    end if;
    -- As above: the caller locks all shards next, from the first one on.
    raise exception using errcode = 'CB001';
  exception when sqlstate 'CB001' then
    return false;
  end;
end
$$
