-- Records the outcomes of jobs of batches. p_states: 4, 5 or 6, as the states of jobs; p_roots: the
-- job of which each is a replay; null: none is. A job counts once.
-- Index: the primary keys, once for each job: the rows are looked up behind the fence `offset 0`
-- and accessed by ctid. With a plain join the planner scanned a whole batch that it estimated to be
-- small, for each settlement: 890 µs a job in a batch of 15,000, and 5 µs with the fence.
-- Locks, in this order: the replayed jobs, the jobs of batches in the order of the table; then,
-- batch by batch, its shards, the batch and its callbacks. Safe to repeat.
create function {schema}.batches_settle(
  p_batches uuid[], p_jobs uuid[], p_states smallint[], p_roots uuid[]
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
declare
  v_of record;
  v_again {schema}.batches_counts[];
begin
  -- A process that hangs in this transaction must not block others for long.
  perform set_config('idle_in_transaction_session_timeout', '10s', true);
  if p_roots is not null then
    v_again := {schema}.batches_forgive(p_batches, p_jobs, p_states, p_roots);
  end if;
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
    select c.id, sum(c.ended)::int as ended, sum(c.succeeded)::int as succeeded,
      sum(c.failed)::int as failed, sum(c.cancelled)::int as cancelled,
      bool_or(c.failed > 0) as failing
    from (
      select e.batch_id as id, count(*) as ended, count(*) filter (where e.state = 4) as succeeded,
        count(*) filter (where e.state = 5) as failed, count(*) filter (where e.state = 6) as cancelled
      from ended e group by e.batch_id
      union all
      select a.* from unnest(v_again) as a) as c
    group by c.id order by c.id
  loop
    perform {schema}.batches_count(
      v_of.id, v_of.ended, v_of.succeeded, v_of.failed, v_of.cancelled);
    -- As many replays may have succeeded as jobs have failed.
    if v_of.failing and v_of.failed <= 0 then
      perform {schema}.batches_call(v_of.id, 2::smallint);
    end if;
  end loop;
end
$$
