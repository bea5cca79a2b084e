-- Returns the due and running jobs of a queue, up to 10,000 of each: what a scaler goes by.
-- Index: jobs_pending, jobs_running. No locks. Safe to repeat.
create function {schema}.queue_backlog(p_queue text) returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
begin atomic
  select
    (select count(*) from (
      select from {schema}.jobs j where j.state = 0 and j.queue = p_queue limit 10000) d)
    + (select count(*) from (
      select from {schema}.jobs j where j.state = 1 and j.queue = p_queue limit 10000) r);
end
