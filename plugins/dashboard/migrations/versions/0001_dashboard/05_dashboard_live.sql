-- Jobs that have not finished, newest first, below the id in p_after.
-- Index: the primary key, backwards. The plan is pinned: before a vacuum, and in a partition
-- without statistics, the planner prefers to read and sort a whole table. No locks. Safe to
-- repeat.
create function {schema}.dashboard_live(p_queue text, p_worker uuid, p_rows int, p_after jsonb)
returns setof {schema}.dashboard_job
language plpgsql stable
set search_path = pg_catalog, pg_temp
{pinned_plan}
set enable_sort = off
as $$
begin
  return query
  select
    j.id::text,
    j.id, j.func, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.run_at, j.worker_id,
    j.pushed_at, j.claimed_at, null::timestamptz, j.arguments, j.errors, j.meta
  from {schema}.jobs j
  where j.id < (p_after ->> 'id')::uuid
  order by j.id desc
  limit p_rows;
end
$$
