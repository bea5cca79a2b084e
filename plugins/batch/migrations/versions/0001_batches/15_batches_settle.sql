-- Takes the ends of jobs of batches. p_states: 4, 5 or 6, as those of jobs; p_roots: which job each is
-- a replay of; null: none is. A job counts once.
-- Index: the primary keys, once for each job: the rows are looked up behind the fence `offset 0`, and taken
-- by their place. Joined plainly, the planner walked through a whole batch that it took for a small one, for
-- each settlement: 890 µs a job in a batch of 15,000, and 5 µs so.
-- Locks, in this order: the jobs of batches in the order of the table, shards by batch and shard, batches
-- and callbacks. Safe to repeat.
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
      where m.state in (0, -1) and m.ctid = any (array(
        select l.ctid
        from unnest(p_batches, p_jobs, p_states) as d (batch, job, state)
        cross join lateral (
          select o.ctid from {schema}.batches_jobs o
          where o.batch_id = d.batch and o.job_id = d.job and o.state in (0, -1) offset 0) as l
        where d.state = 4))
      returning m.batch_id, 4 as state
    ), failed as (
      update {schema}.batches_jobs m set state = 5
      where m.state in (0, -1) and m.ctid = any (array(
        select l.ctid
        from unnest(p_batches, p_jobs, p_states) as d (batch, job, state)
        cross join lateral (
          select o.ctid from {schema}.batches_jobs o
          where o.batch_id = d.batch and o.job_id = d.job and o.state in (0, -1) offset 0) as l
        where d.state = 5))
      returning m.batch_id, 5 as state
    ), cancelled as (
      update {schema}.batches_jobs m set state = 6
      where m.state in (0, -1) and m.ctid = any (array(
        select l.ctid
        from unnest(p_batches, p_jobs, p_states) as d (batch, job, state)
        cross join lateral (
          select o.ctid from {schema}.batches_jobs o
          where o.batch_id = d.batch and o.job_id = d.job and o.state in (0, -1) offset 0) as l
        where d.state = 6))
      returning m.batch_id, 6 as state
    ), ended as (
      select * from went union all select * from failed union all select * from cancelled)
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
