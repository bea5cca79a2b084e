-- Pending jobs of a queue in the order in which they are claimed, after the priority and
-- position in p_after.
-- Index: jobs_pending. The plan is pinned, as in dashboard_live. No locks. Safe to repeat.
create function {schema}.dashboard_pending(p_queue text, p_worker uuid, p_rows int, p_after jsonb)
returns setof {schema}.dashboard_job
language plpgsql stable
set search_path = pg_catalog, pg_temp
{pinned_plan}
set enable_sort = off
as $$
begin
  return query
  select
    j.priority || '_' || j.pos,
    j.id, j.func, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.run_at, j.worker_id,
    j.pushed_at, j.claimed_at, null::timestamptz, j.arguments, j.errors, j.meta
  from (
    (
      select * from {schema}.jobs o
      where o.state = 0 and o.queue = p_queue
        and o.priority = (p_after ->> 'priority')::int and o.pos > (p_after ->> 'pos')::bigint
      order by o.pos limit p_rows)
    union all
    (
      select * from {schema}.jobs o
      where o.state = 0 and o.queue = p_queue and o.priority < (p_after ->> 'priority')::int
      order by o.priority desc, o.pos limit p_rows)
    limit p_rows) j;
end
$$
