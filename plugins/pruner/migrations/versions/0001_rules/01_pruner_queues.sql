-- Returns the queues that have finished jobs, by name, at most p_limit.
-- Index: finished_jobs_queue of each partition, by a loose scan. No locks. Safe to repeat.
create function {schema}.pruner_queues(p_limit int) returns setof text
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set lock_timeout = '100ms'
as $$
begin
  return query
  with recursive known (queue) as (
    (select f.queue from {schema}.finished_jobs f order by f.queue limit 1)
    union all
    select (select f.queue from {schema}.finished_jobs f
            where f.queue > known.queue order by f.queue limit 1)
    from known where known.queue is not null)
  select known.queue from known where known.queue is not null limit p_limit;
end
$$
