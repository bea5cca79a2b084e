-- Counts the pending, held and running jobs of a queue in Postgres, up to 10,000 of each, without those
-- on hold.
-- Index: jobs_pending, jobs_held, jobs_running. No locks. Safe to repeat.
create function {schema}.queue_unfinished(p_queue text) returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
  select
    (select count(*) from (
      select from {schema}.jobs j where j.state = 0 and j.queue = p_queue limit 10000) p)
    + (select count(*) from (
      select from {schema}.jobs j
      where j.state + 0 = 3 and j.queue = p_queue
        and not coalesce(j.meta ? 'hold', false) limit 10000) h)
    + (select count(*) from (
      select from {schema}.jobs j where j.state = 1 and j.queue = p_queue limit 10000) r)
$$
