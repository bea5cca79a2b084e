-- Cancels waiting jobs and requests cancellation of running ones. Reports the outcome for each id;
-- 'busy' if another transaction holds its row: call again. Never waits for a row, so it cannot
-- deadlock.
-- Index: the primary keys of jobs and awaited, finished_jobs_id. Locks: rows of jobs, skipping
-- locked ones. Jobs of batches and workflows are kept in any queue, for their sweeps.
-- If a plugin supplies the function on_cancelled(uuid[]), it gets the jobs before waiting ones end. An
-- error of it is a warning: jobs are cancelled all the same.
create function {schema}.cancel(p_ids uuid[]) returns table (id uuid, what text)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_locked uuid[] := array(
    select j.id from {schema}.jobs j where j.id = any (p_ids) for update skip locked);
begin
  if exists (select from {schema}.queues q where not q.keep_finished) then
    insert into {schema}.recently_finished (ids) values (v_locked);
  end if;
  if has_function_privilege(to_regprocedure(
    format('%I.on_cancelled(uuid[])', {schema_text})), 'execute')
  then
    begin
      execute format('select %I.on_cancelled($1)', {schema_text}) using v_locked;
    exception when others then
      raise warning 'on_cancelled failed: %', sqlerrm;
    end;
  end if;
  return query
  with ended as (
    delete from {schema}.jobs j where j.id = any (v_locked) and j.state <> 1 returning j.*
  ), kept as (
    insert into {schema}.finished_jobs (
      id, pos, state, queue, priority, func, arguments, run_at, attempt, max_attempts, crashes,
      lease, worker_id, claimed_at, deadline_at, stop_asked_at, unique_key, limits, meta, errors,
      pushed_at)
    select e.id, e.pos, 6, e.queue, e.priority, e.func, e.arguments, e.run_at, e.attempt,
      e.max_attempts, e.crashes, e.lease, e.worker_id, e.claimed_at, e.deadline_at,
      clock_timestamp(), e.unique_key, e.limits, e.meta, e.errors, e.pushed_at
    from ended e
    where not exists (
      select from {schema}.queues q where q.name = e.queue and not q.keep_finished)
      or e.meta ?| '{batch,workflow}')
  select case
      when (select true from {schema}.awaited a where a.id = e.id) then {schema}.notify_finished(e.id)
      else e.id
    end, 'cancelled'
  from ended e;
  return query
  with asked as (
    update {schema}.jobs j set stop_asked_at = coalesce(j.stop_asked_at, clock_timestamp())
    where j.id = any (v_locked) and j.state = 1 returning j.id
  ), told as (
    select asked.id, pg_notify({schema}.channel(), 's:' || asked.id) from asked)
  select told.id, 'asked' from told;
  return query
  select wanted.id, case
      when exists (select from {schema}.jobs j where j.id = wanted.id) then 'busy'
      when exists (select from {schema}.finished_jobs f where f.id = wanted.id) then 'finished'
      else 'unknown'
    end
  from unnest(p_ids) as wanted (id)
  where wanted.id <> all (v_locked);
end
$$
