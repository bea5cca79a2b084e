-- Finishes attempts that carry nothing but a result, as nearly all do. Called by {schema}.finish:
-- 6.0 µs a job instead of 7.4, since the rows do not have to carry null columns.
-- Failed jobs are always kept, so that the failure can be inspected.
-- Notifies clients that wait for one of the jobs: 0.5 µs a job to check that there are none.
-- Index: the primary keys of jobs and awaited, once for each id. Locks: rows of jobs in the order
-- given.
create function {schema}.finish_plain(
  p_ids uuid[], p_leases uuid[], p_states smallint[], p_results text[]
) returns setof uuid
language plpgsql rows 200
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
declare
  v_not_kept text[] := array(select q.name from {schema}.queues q where not q.keep_finished);
begin
  return query
  with ended as (
    delete from {schema}.jobs j
    using unnest(p_ids, p_leases, p_states, p_results) as s (id, lease, state, result)
    where j.id = any (array[s.id]) and j.lease = s.lease and j.state in (1, -1)
    returning j.id, j.pos, coalesce(s.state, 4::smallint) as state, j.queue, j.priority, j.func,
      j.arguments, j.run_at, j.attempt, j.max_attempts, j.crashes, j.lease, j.worker_id, j.claimed_at, j.deadline_at,
      j.stop_asked_at, j.unique_key, j.limits, j.meta, j.errors, j.pushed_at, s.result
  ), kept as (
    insert into {schema}.finished_jobs (
      id, pos, state, queue, priority, func, arguments, run_at, attempt, max_attempts, crashes,
      lease, worker_id, claimed_at, deadline_at, stop_asked_at, unique_key, limits, meta, errors,
      pushed_at, result)
    select e.id, e.pos, e.state, e.queue, e.priority, e.func, e.arguments, e.run_at, e.attempt,
      e.max_attempts, e.crashes, e.lease, e.worker_id, e.claimed_at, e.deadline_at,
      e.stop_asked_at, e.unique_key, e.limits, e.meta, e.errors, e.pushed_at, e.result::jsonb
    from ended e
    where e.state = 5 or e.queue <> all (v_not_kept))
  select case
    when (select true from {schema}.awaited a where a.id = e.id) then {schema}.notify_finished(e.id)
    else e.id
  end
  from ended e;
end
$$
