-- Creates a batch with its callbacks; it runs once it is sealed. Returns false if a batch with this
-- id exists.
-- Index: the primary keys. Locks: the rows that it inserts. Safe to repeat.
create function {schema}.batches_begin(
  p_id uuid, p_name text, p_open boolean, p_kinds smallint[], p_jobs uuid[], p_queues text[],
  p_priorities smallint[], p_funcs text[], p_arguments text[], p_run_ats timestamptz[],
  p_delays float8[], p_max_attempts int[], p_limits text[], p_metas text[],
  p_expires_ats timestamptz[], p_expires_s float8[]
) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into {schema}.batches (id, name, open) values (p_id, p_name, p_open)
  on conflict (id) do nothing;
  if not found then
    return false;
  end if;
  perform {schema}.check_counted(p_queues, 'a callback of a batch');
  insert into {schema}.batches_callbacks (batch_id, kind, job_id, queue, priority, func, arguments,
    run_at, delay_s, max_attempts, limits, meta, expires_at, expires_s)
  select p_id, c.kind, c.job, c.queue, c.priority, c.func, c.arguments::jsonb, c.run_at, c.delay_s,
    c.max_attempts, c.limits::jsonb, c.meta::jsonb, c.expires_at, c.expires_s
  from unnest(p_kinds, p_jobs, p_queues, p_priorities, p_funcs, p_arguments, p_run_ats, p_delays,
    p_max_attempts, p_limits, p_metas, p_expires_ats, p_expires_s) as c (kind, job, queue, priority,
      func, arguments, run_at, delay_s, max_attempts, limits, meta, expires_at, expires_s);
  return true;
end
$$
