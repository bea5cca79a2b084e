-- Returns the lanes that hold pending jobs: each queue with its priorities, the highest first;
-- p_limit at most. Index: jobs_pending, by loose scans. No locks. Safe to repeat.
create function {schema}.reprioritize_lanes(p_limit int)
returns table (queue text, priority smallint)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set lock_timeout = '100ms'
as $$
#variable_conflict use_column
begin
  return query
  with recursive lane (queue, priority) as (
    (select j.queue, j.priority from {schema}.jobs j
     where j.state = 0 order by j.queue, j.priority desc limit 1)
    union all
    select n.queue, n.priority
    from lane
    cross join lateral (
      (select j.queue, j.priority from {schema}.jobs j
       where j.state = 0 and j.queue = lane.queue and j.priority < lane.priority
       order by j.priority desc limit 1)
      union all
      (select j.queue, j.priority from {schema}.jobs j
       where j.state = 0 and j.queue > lane.queue
       order by j.queue, j.priority desc limit 1)
      limit 1) n)
  select lane.queue, lane.priority from lane limit p_limit;
end
$$
