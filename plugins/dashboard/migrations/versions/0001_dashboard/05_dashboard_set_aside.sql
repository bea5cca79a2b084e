-- Held jobs whose function no worker knows, by queue and function, after those and the priority
-- and position in p_after.
-- Index: jobs_set_aside. The plan is pinned, as in dashboard_live. No locks. Safe to repeat.
create function {schema}.dashboard_set_aside(p_queue text, p_worker uuid, p_rows int, p_after jsonb)
returns setof {schema}.dashboard_job
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
begin
  return query
  select
    jsonb_build_array(j.queue, j.key, j.priority, j.pos)::text,
    j.id, j.func, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.run_at, j.worker_id,
    j.pushed_at, j.claimed_at, null::timestamptz, j.arguments, j.errors, j.meta
  from (
    (
      select o.*, o.func as key from {schema}.jobs o
      where o.state = 3 and o.meta ? 'unknown_function' and o.queue = p_after ->> 'queue'
        and o.func = p_after ->> 'key'
        and o.priority = (p_after ->> 'priority')::int and o.pos > (p_after ->> 'pos')::bigint
      order by o.pos limit p_rows)
    union all
    (
      select o.*, o.func from {schema}.jobs o
      where o.state = 3 and o.meta ? 'unknown_function' and o.queue = p_after ->> 'queue'
        and o.func = p_after ->> 'key' and o.priority < (p_after ->> 'priority')::int
      order by o.priority desc, o.pos limit p_rows)
    union all
    (
      select o.*, o.func from {schema}.jobs o
      where o.state = 3 and o.meta ? 'unknown_function'
        and (o.queue, o.func) > (p_after ->> 'queue', p_after ->> 'key')
      order by o.queue, o.func, o.priority desc, o.pos limit p_rows)
    limit p_rows) j;
end
$$
