-- Pushes the callback of a kind, unless it was pushed before, and wakes the workers of its queue.
-- Index: the primary key of batches_callbacks. Locks: its row; the caller has locked shards and
-- batch before. Safe to repeat.
create function {schema}.batches_call(p_id uuid, p_kind smallint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_due {schema}.batches_callbacks;
  v_meta jsonb;
  v_state smallint;
begin
  update {schema}.batches_callbacks c set pushed_at = v_now
  where c.batch_id = p_id and c.kind = p_kind and c.pushed_at is null
  returning c.* into v_due;
  if not found then
    return;
  end if;
  v_due.run_at := coalesce(v_due.run_at, v_now + v_due.delay_s * interval '1 second');
  v_meta := coalesce(v_due.meta, '{}') || jsonb_build_object('batch', jsonb_build_object(
    'of', p_id, 'on', case p_kind when 1 then 'success' when 2 then 'failure' else 'finish' end));
  insert into {schema}.jobs (id, pos, state, queue, priority, func, arguments, run_at, max_attempts,
    limits, meta, expires_at)
  values (v_due.job_id, nextval('{schema}.positions'), {schema}.admit(v_due.run_at, v_meta),
    v_due.queue, v_due.priority, v_due.func, v_due.arguments, v_due.run_at, v_due.max_attempts,
    v_due.limits, v_meta, coalesce(v_due.expires_at, v_now + v_due.expires_s * interval '1 second'))
  on conflict (id) do nothing
  returning state into v_state;
  if v_state = 0 then
    perform {schema}.wake(v_due.queue, true);
  end if;
end
$$
