-- Held jobs, whatever holds them, by queue and position, after those in p_after.
-- Index: jobs_held. The plan is pinned, as in dashboard_live. No locks. Safe to repeat.
create function {schema}.dashboard_held(p_queue text, p_worker uuid, p_rows int, p_after jsonb)
returns setof {schema}.dashboard_job
language plpgsql stable
set search_path = pg_catalog, pg_temp
{pinned_plan}
set enable_sort = off
as $$
begin
  return query
  select
    jsonb_build_array(j.queue, j.pos)::text,
    j.id, j.func, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.run_at, j.worker_id,
    j.pushed_at, j.claimed_at, null::timestamptz, j.arguments, j.errors, j.meta
  from {schema}.jobs j
  where j.state + 0 = 3
    and (j.queue, j.pos) > (p_after ->> 'queue', (p_after ->> 'pos')::bigint)
  order by j.queue, j.pos
  limit p_rows;
end
$$
