-- Takes the ends of jobs of batches. p_states: 4, 5 or 6, as those of jobs; p_roots: which job each is
-- a replay of; null: none is. A job counts once.
-- Index: the primary keys. Locks, in this order: the jobs of batches in the order given, shards by batch
-- and shard, batches and callbacks. The caller gives them by batch and job. Safe to repeat.
create function {schema}.batches_settle(
  p_batches uuid[], p_jobs uuid[], p_states smallint[], p_roots uuid[]
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  v_of record;
begin
  -- A process that is frozen in here must not hold the others up.
  perform set_config('idle_in_transaction_session_timeout', '10s', true);
  for v_of in
    with went as (
      delete from {schema}.batches_jobs m
      using unnest(p_batches, p_jobs, p_states) as d (batch, job, state)
      where m.batch_id = d.batch and m.job_id = any (array[d.job]) and m.state in (0, -1)
        and d.state = 4
      returning m.batch_id
    ), failed as (
      update {schema}.batches_jobs m set state = d.state
      from unnest(p_batches, p_jobs, p_states) as d (batch, job, state)
      where m.batch_id = d.batch and m.job_id = any (array[d.job]) and m.state in (0, -1)
        and d.state in (5, 6)
      returning m.batch_id, m.state
    ), ended as (
      select w.batch_id, 4 as state from went w
      union all
      select f.batch_id, f.state from failed f)
    select e.batch_id as id, count(*)::int as ended,
      (count(*) filter (where e.state = 4))::int as succeeded,
      (count(*) filter (where e.state = 5))::int as failed,
      (count(*) filter (where e.state = 6))::int as cancelled
    from ended e group by e.batch_id order by e.batch_id
  loop
    perform {schema}.batches_count(
      v_of.id, v_of.ended, v_of.succeeded, v_of.failed, v_of.cancelled);
  end loop;
  if p_roots is not null then
    perform {schema}.batches_forgive(d.batch, d.job, d.state, d.root)
    from unnest(p_batches, p_jobs, p_states, p_roots) as d (batch, job, state, root)
    where d.root is not null;
  end if;
end
$$
