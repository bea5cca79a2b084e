-- Finishes attempts: moves the rows that still hold (id, lease) to finished_jobs, or deletes them
-- where the queue does not keep its finished jobs. Failed jobs are always kept. Returns the
-- accepted ids. p_states: null: all of them succeeded (4).
-- Index: the primary keys of jobs and awaited, once for each id. Locks: rows of jobs in the order
-- given.
-- The conditions on id and state are written so that only the primary key serves them. Plain
-- conditions would let the planner start from all running jobs whenever it estimates that there are
-- few.
-- Where a queue does not keep its finished jobs, the ids go to recently_finished, those of refused
-- attempts included: to select the deleted jobs would take twice as long (0.3 µs a job).
-- A repeated call accepts nothing; {schema}.settled then reports what the first call did.
create function {schema}.finish(
  p_ids uuid[], p_leases uuid[], p_states smallint[], p_results text[], p_failures text[],
  p_refunds boolean[], p_crashes boolean[], p_metas text[]
) returns setof uuid
language plpgsql rows 200
set search_path = pg_catalog, pg_temp
{pinned_plan}
set lock_timeout = '1s'
as $$
declare
  v_not_kept text[] := array(select q.name from {schema}.queues q where not q.keep_finished);
begin
  if v_not_kept <> '{}' then
    insert into {schema}.recently_finished (ids) values (p_ids);
  end if;
  if p_failures is null and p_refunds is null and p_crashes is null and p_metas is null then
    return query select {schema}.finish_plain(p_ids, p_leases, p_states, p_results);
    return;
  end if;
  return query
  with ended as (
    delete from {schema}.jobs j
    using unnest(
      p_ids, p_leases, p_states, p_results, p_failures, p_refunds, p_crashes, p_metas
    ) as s (id, lease, state, result, failure, refund, crashed, meta)
    where j.id = any (array[s.id]) and j.lease = s.lease and j.state in (1, -1)
    returning j.id, j.pos, coalesce(s.state, 4::smallint) as state, j.queue, j.priority, j.func,
      j.arguments, j.run_at, j.attempt, j.max_attempts, j.crashes, j.lease, j.worker_id, j.claimed_at, j.deadline_at,
      j.stop_asked_at, j.unique_key, j.limits, j.meta, j.errors, j.pushed_at,
      s.result, s.failure, s.refund, s.crashed, s.meta as change
  ), kept as (
    insert into {schema}.finished_jobs (
      id, pos, state, queue, priority, func, arguments, run_at, attempt, max_attempts, crashes,
      lease, worker_id, claimed_at, deadline_at, stop_asked_at, unique_key, limits, meta, errors,
      pushed_at, result)
    select e.id, e.pos, e.state, e.queue, e.priority, e.func, e.arguments, e.run_at,
      case when e.refund then greatest(e.attempt, 1) - 1 else e.attempt end, e.max_attempts,
      case when e.crashed then least(e.crashes, 32766) + 1 else e.crashes end,
      e.lease, e.worker_id, e.claimed_at, e.deadline_at, e.stop_asked_at, e.unique_key, e.limits,
      {schema}.with_meta(e.meta, e.change),
      {schema}.with_failure(e.errors, e.failure, e.attempt, e.worker_id,
        greatest(e.pushed_at, e.run_at), e.claimed_at),
      e.pushed_at, e.result::jsonb
    from ended e
    where e.state = 5 or e.queue <> all (v_not_kept))
  select case
    when (select true from {schema}.awaited a where a.id = e.id) then {schema}.notify_finished(e.id)
    else e.id
  end
  from ended e;
end
$$
