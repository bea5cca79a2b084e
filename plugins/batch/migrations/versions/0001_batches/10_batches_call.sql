-- Pushes the callback of a kind, unless it was pushed before, and wakes the workers of its queue.
-- Index: the primary key of batches_callbacks. Locks: its row; by the caller, before: shards and batch.
-- Safe to repeat.
create function {schema}.batches_call(p_id uuid, p_kind smallint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_queue text;
begin
  with due as (
    update {schema}.batches_callbacks c set pushed_at = v_now
    where c.batch_id = p_id and c.kind = p_kind and c.pushed_at is null
    returning c.*, coalesce(c.run_at, v_now + c.delay_s * interval '1 second') as due
  ), pushed as (
    insert into {schema}.jobs (id, pos, state, queue, priority, func, arguments, run_at,
      max_attempts, limits, meta)
    select d.job_id, nextval('{schema}.positions'), case when d.due > v_now then 2 else 0 end,
      d.queue, d.priority, d.func, d.arguments, d.due, d.max_attempts, d.limits,
      coalesce(d.meta, '{}') || jsonb_build_object('batch', jsonb_build_object(
        'of', p_id, 'on', case p_kind when 1 then 'success' when 2 then 'failure' else 'finish' end))
    from due d
    on conflict (id) do nothing
    returning queue, state)
  select p.queue into v_queue from pushed p where p.state = 0;
  if v_queue is not null then
    perform {schema}.wake(v_queue, true);
  end if;
end
$$
