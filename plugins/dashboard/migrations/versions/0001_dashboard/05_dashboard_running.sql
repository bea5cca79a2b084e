-- Running jobs, the longest running first, after the time and id in p_after.
-- Index: jobs_running; sorts all running jobs. The plan is pinned, as in dashboard_live. No
-- locks. Safe to repeat.
create function {schema}.dashboard_running(p_queue text, p_worker uuid, p_rows int, p_after jsonb)
returns setof {schema}.dashboard_job
language plpgsql stable
set search_path = pg_catalog, pg_temp
{pinned_plan}
set enable_sort = off
as $$
begin
  return query
  select
    to_char(j.claimed_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') || '_' || j.id,
    j.id, j.func, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.run_at, j.worker_id,
    j.pushed_at, j.claimed_at, null::timestamptz, j.arguments, j.errors, j.meta
  from {schema}.jobs j
  where j.state = 1
    and (j.claimed_at, j.id) > ((p_after ->> 'at')::timestamptz, (p_after ->> 'id')::uuid)
  order by j.claimed_at, j.id
  limit p_rows;
end
$$
