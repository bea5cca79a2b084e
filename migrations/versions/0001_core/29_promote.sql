-- Makes due scheduled jobs pending, earliest first, each with a new position. Returns the number of
-- promoted jobs, and the seconds until the next job is due.
-- Index: jobs_scheduled, from its start. Locks: rows of jobs in that order, skipping locked ones.
-- Safe to repeat. The time is read once: a volatile call would not be a condition of the index.
create function {schema}.promote(p_limit int, out promoted int, out next_due_s float8)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set lock_timeout = '2s'
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_queues text[];
begin
  with due as materialized (
    select x.tid, nextval('{schema}.positions') as pos
    from (
      select j.ctid as tid from {schema}.jobs j
      where j.state = 2 and j.run_at <= v_now
      order by j.run_at limit p_limit for update skip locked) x
  ), ready as (
    update {schema}.jobs j
    set state = 0, pos = due.pos
    from due
    where j.ctid = due.tid
    returning j.queue)
  select count(*), array_agg(distinct ready.queue) into promoted, v_queues from ready;
  perform {schema}.wake(q.name, true) from unnest(v_queues) as q (name);
  -- Not of the difference: that of an infinite time is an error, which would stop all promotion.
  select extract(epoch from j.run_at) - extract(epoch from v_now) into next_due_s
  from {schema}.jobs j where j.state = 2 order by j.run_at limit 1;
end
$$
