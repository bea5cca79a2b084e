-- Ends attempts and requeues their jobs: to scheduled (2), or at their old position to pending (0)
-- or held (3).
-- A job for which cancellation was requested is cancelled instead. Returns the accepted ids.
-- Index: the primary key of jobs, once for each id. Locks: rows of jobs in the order given.
-- The conditions on id and state are written so that only the primary key serves them. Plain
-- conditions would let the planner start from all running jobs whenever it estimates that there are
-- few.
-- A repeated call accepts nothing; {schema}.settled then reports what the first call did.
create function {schema}.requeue(
  p_ids uuid[], p_leases uuid[], p_states smallint[], p_delays float8[], p_run_ats timestamptz[],
  p_failures text[], p_refunds boolean[], p_crashes boolean[], p_metas text[],
  p_resets boolean[]
) returns setof uuid
language plpgsql rows 200
set search_path = pg_catalog, pg_temp
{pinned_plan}
set lock_timeout = '1s'
as $$
declare
  v_accepted uuid[];
  v_queues text[];
begin
  with back as (
    update {schema}.jobs j
    set state = s.state,
      run_at = case
        when s.state = 2 then coalesce(s.run_at, clock_timestamp() + s.delay * interval '1 second')
        else j.run_at
      end,
      attempt = case when s.refund then greatest(j.attempt, 1) - 1 else j.attempt end,
      crashes = case
        when s.crashed then least(j.crashes, 32766) + 1 when s.reset then 0 else j.crashes
      end,
      meta = {schema}.with_meta(j.meta, s.change),
      errors = {schema}.with_failure(j.errors, s.failure, j.attempt, j.worker_id,
        greatest(j.pushed_at, j.run_at), j.claimed_at),
      worker_id = null, claimed_at = null, deadline_at = null
    from unnest(
      p_ids, p_leases, p_states, p_delays, p_run_ats, p_failures, p_refunds, p_crashes, p_metas,
      p_resets
    ) as s (id, lease, state, delay, run_at, failure, refund, crashed, change, reset)
    where j.id = any (array[s.id]) and j.lease = s.lease and j.state in (1, -1) and j.stop_asked_at is null
    returning j.id, j.state, j.queue)
  select array_agg(back.id), array_agg(distinct back.queue) filter (where back.state in (0, 3))
  into v_accepted, v_queues
  from back;
  perform pg_notify({schema}.channel(), 'r:' || q.name) from unnest(v_queues) as q (name);
  return query select unnest(v_accepted);
  return query select {schema}.finish(
    p_ids, p_leases, array_fill(6::smallint, array[cardinality(p_ids)]), null, p_failures,
    p_refunds, p_crashes, p_metas);
end
$$
