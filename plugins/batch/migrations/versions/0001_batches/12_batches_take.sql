-- Counts ends in one shard of a batch, if that has more pending jobs than these: then they are not the
-- last. False: it has not, and it is not locked; with p_single, of a batch with one shard, it may be.
-- Index: the primary key of batches_shards. Locks: the row of the shard. Not to be repeated.
-- Called by batches_count alone, whose settings hold here, too: each function with its own costs 15 µs.
create function {schema}.batches_take(
  p_id uuid, p_shard int, p_single boolean, p_ended int, p_succeeded int, p_failed int, p_cancelled int
) returns boolean
language plpgsql
as $$
begin
  if p_single then
    update {schema}.batches_shards s
    set pending = s.pending - p_ended, succeeded = s.succeeded + p_succeeded,
      failed = s.failed + p_failed, cancelled = s.cancelled + p_cancelled
    where s.batch_id = p_id and s.shard = 0 and s.pending > p_ended;
    return found;
  end if;
  begin
    update {schema}.batches_shards s
    set pending = s.pending - p_ended, succeeded = s.succeeded + p_succeeded,
      failed = s.failed + p_failed, cancelled = s.cancelled + p_cancelled
    where s.batch_id = p_id and s.shard = p_shard and s.pending > p_ended;
    if found then
      return true;
    end if;
    -- A row that was changed meanwhile stays locked though it does not fit any more. Whoever locks all
    -- shards must begin at the first one, or two of them wait for each other.
    raise exception using errcode = 'CB001';
  exception when sqlstate 'CB001' then
    return false;
  end;
end
$$
