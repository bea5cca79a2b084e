-- Finished jobs of a queue, the last one first, before the time and id in p_after.
-- Index: finished_jobs_queue of the partitions. The plan is pinned, as in dashboard_live. No
-- locks. Safe to repeat.
create function {schema}.dashboard_ended(p_queue text, p_worker uuid, p_rows int, p_after jsonb)
returns setof {schema}.dashboard_job
language plpgsql stable
set search_path = pg_catalog, pg_temp
{pinned_plan}
set enable_sort = off
as $$
begin
  return query
  select
    to_char(j.finished_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') || '_' || j.id,
    j.id, j.func, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.run_at, j.worker_id,
    j.pushed_at, j.claimed_at, j.finished_at, j.arguments, j.errors, j.meta
  from {schema}.finished_jobs j
  where j.queue = p_queue
    and j.finished_at <= (p_after ->> 'at')::timestamptz
    and (j.finished_at, j.id) < ((p_after ->> 'at')::timestamptz, (p_after ->> 'id')::uuid)
  order by j.finished_at desc, j.id desc
  limit p_rows;
end
$$
