-- Takes jobs of one batch that have succeeded, as nearly all do in a large one; see batches_settle: 2 µs a
-- job less.
-- Index: the primary keys, once for each job. The conditions are written so that only the primary key
-- serves them: as `= any (p_jobs)`, the planner walked through the whole batch (14,529 pages for 100 jobs).
-- Locks: the jobs of the batch in the order given, shards by shard, the batch and callbacks. The caller
-- gives the jobs by id. Safe to repeat.
create function {schema}.batches_settle_one(p_batch uuid, p_jobs uuid[]) returns void
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
  v_count int;
begin
  perform set_config('idle_in_transaction_session_timeout', '10s', true);
  delete from {schema}.batches_jobs m
  using unnest(p_jobs) as d (job)
  where m.batch_id = p_batch and m.job_id = any (array[d.job]) and m.state in (0, -1);
  get diagnostics v_count = row_count;
  if v_count > 0 then
    perform {schema}.batches_count(p_batch, v_count, v_count, 0, 0);
  end if;
end
$$
