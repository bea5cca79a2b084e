-- Assigns jobs that were pushed in this transaction to a batch, which counts them when it is
-- sealed, or by batches_added. Returns the number of jobs. Jobs that are not in the table jobs are
-- with another broker.
-- Index: the primary keys. Locks: the rows that it inserts. Not to be repeated.
create function {schema}.batches_join(p_id uuid, p_jobs uuid[]) returns int
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
  insert into {schema}.batches_jobs (batch_id, job_id, away)
  select p_id, u.id, l.id is null
  from unnest(p_jobs) as u (id)
  left join lateral (select j.id from {schema}.jobs j where j.id = u.id offset 0) as l on true;
  get diagnostics v_count = row_count;
  return v_count;
end
$$
