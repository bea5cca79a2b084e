-- Writes finished jobs of Redis into the history, each completion once; returns how many were new.
-- The history has no unique index, so only one archive call runs at a time, and each sees what the
-- previous one has written. Index: finished_jobs_id of each day, once for each job. Locks: an
-- advisory one.
-- Safe to repeat.
create function {schema}.redis_archive(p_jobs jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_new bigint;
begin
  perform pg_advisory_xact_lock(hashtext({schema}.channel()), hashtext('redis_archive'));
  insert into {schema}.finished_jobs (
    id, pos, state, queue, priority, func, arguments, run_at, attempt, max_attempts, crashes,
    lease, worker_id, claimed_at, stop_asked_at, unique_key, limits, meta, errors, pushed_at,
    result, finished_at)
  select
    r.id, r.pos, r.state, r.queue, r.priority, r.func, r.arguments, r.run_at, r.attempt,
    r.max_attempts, r.crashes, r.lease, r.worker_id, r.claimed_at, r.stop_asked_at,
    r.unique_key, r.limits, r.meta, r.errors, r.pushed_at, r.result, r.finished_at
  from jsonb_to_recordset(p_jobs) as r (
    id uuid, pos bigint, state smallint, queue text, priority smallint, func text,
    arguments jsonb, run_at timestamptz, attempt int, max_attempts int, crashes smallint,
    lease uuid, worker_id uuid, claimed_at timestamptz, stop_asked_at timestamptz,
    unique_key bytea, limits jsonb, meta jsonb, errors jsonb, pushed_at timestamptz,
    result jsonb, finished_at timestamptz)
  where not exists (
    select
    from {schema}.finished_jobs as f
    where f.id = r.id
      and f.finished_at = r.finished_at);
  get diagnostics v_new = row_count;
  return v_new;
end
$$
