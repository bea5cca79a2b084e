-- Everything that an idle worker asks again and again, in one call. Stores for which of its queues it
-- has no room (p_occupied), and returns:
-- waiting: its queues with jobs to claim; see {schema}.waiting;
-- stopping: its running jobs that were requested to stop; with its own id if it was requested to;
-- place, crowd: how many live workers that serve the same queues have a lower id, and how many there
-- are, itself included; 0 if it is not registered; null unless p_count, since to count a thousand
-- takes longer than everything else;
-- full_queues, full_shares: the share of 32 of them that has no room, by queue;
-- queues_version: changes whenever a queue is declared, changed, paused, resumed or deleted;
-- resumes_s: the seconds until the first of its paused queues resumes; null if none does;
-- took_s: the seconds that the call took.
-- Index: workers_crowd, jobs_stopping, the primary keys, and those of {schema}.waiting. Scans the
-- small table of queues. Locks: the row of the worker if its occupied queues have changed, unless
-- another transaction locks it. Safe to repeat.
create function {schema}.survey(
  p_worker uuid, p_occupied text[], p_count boolean,
  out waiting text[], out stopping uuid[], out place int, out crowd int,
  out full_queues text[], out full_shares float8[], out queues_version text, out resumes_s float8,
  out took_s float8
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now timestamptz := clock_timestamp();
  v_alive timestamptz := v_now - interval '15 seconds';
  v_own {schema}.workers;
  v_any boolean;
begin
  select w.* into v_own from {schema}.workers w where w.id = p_worker;
  if p_occupied <> v_own.occupied then
    update {schema}.workers w set occupied = p_occupied
    where w.id = any (array(
      select s.id from {schema}.workers s where s.id = p_worker for update skip locked));
  end if;
  waiting := {schema}.waiting(coalesce(v_own.queues, '{}'));
  stopping := array(
    select j.id from {schema}.jobs j
    where j.state = 1 and j.worker_id = p_worker and j.stop_asked_at is not null);
  if v_own.stop_asked_at is not null then
    stopping := stopping || p_worker;
  end if;
  if p_count then
    select count(*) filter (where w.id < p_worker), count(*), bool_or(w.occupied <> '{}')
    into place, crowd, v_any
    from {schema}.workers w
    where w.crowd = v_own.crowd and (w.beat_at > v_alive or w.id = p_worker);
  end if;
  if v_any then
    with near as materialized (
      select w.occupied from {schema}.workers w
      where w.crowd = v_own.crowd and w.beat_at > v_alive
      order by w.id < p_worker, w.id limit 32)
    select array_agg(f.name), array_agg(f.share) into full_queues, full_shares
    from (
      select o.name, count(*)::float8 / (select count(*) from near) as share
      from near cross join unnest(near.occupied) as o (name)
      group by o.name) f;
  end if;
  select concat_ws(' ', count(*), max(q.updated_at), count(*) filter (
      where q.paused_at is not null and (q.resume_at is null or q.resume_at > v_now))),
    extract(epoch from min(q.resume_at) filter (
      where q.paused_at is not null and q.resume_at > v_now and isfinite(q.resume_at)
        and q.name = any (v_own.queues)) - v_now)
  into queues_version, resumes_s
  from {schema}.queues q;
  took_s := extract(epoch from clock_timestamp() - v_now);
end
$$
