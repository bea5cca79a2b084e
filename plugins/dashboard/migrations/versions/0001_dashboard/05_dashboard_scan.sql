-- Up to p_rows jobs of a source, in its order, after the position p_after of the last page. An
-- unknown source is an error. The index of each source stands with it. No locks. Safe to repeat.
-- The plans are pinned: before a vacuum, and in a partition without statistics, the planner prefers
-- to read and sort a whole table.
create function {schema}.dashboard_scan(
  p_source text, p_queue text, p_worker uuid, p_rows int, p_after jsonb
)
returns setof {schema}.dashboard_job
language plpgsql stable
set search_path = pg_catalog, pg_temp
{pinned_plan}
set enable_sort = off
as $$
begin
  case p_source
  when 'live' then
    -- Jobs that have not finished, newest first. Index: the primary key, backwards.
    return query
    select j.id::text,
      j.id, j.func, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.run_at, j.worker_id,
      j.pushed_at, j.claimed_at, null::timestamptz, j.arguments, j.errors, j.meta
    from {schema}.jobs j
    where j.id < (p_after ->> 'id')::uuid
    order by j.id desc
    limit p_rows;
  when 'of_worker' then
    -- Jobs that a worker runs, newest first. Index: jobs_running; sorts what the worker runs.
    return query
    select j.id::text,
      j.id, j.func, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.run_at, j.worker_id,
      j.pushed_at, j.claimed_at, null::timestamptz, j.arguments, j.errors, j.meta
    from {schema}.jobs j
    where j.state = 1 and j.worker_id = p_worker and j.id < (p_after ->> 'id')::uuid
    order by j.id desc
    limit p_rows;
  when 'running' then
    -- Running jobs, the longest running first. Index: jobs_running; sorts all running jobs.
    return query
    select to_char(j.claimed_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') || '_' || j.id,
      j.id, j.func, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.run_at, j.worker_id,
      j.pushed_at, j.claimed_at, null::timestamptz, j.arguments, j.errors, j.meta
    from {schema}.jobs j
    where j.state = 1
      and (j.claimed_at, j.id) > ((p_after ->> 'at')::timestamptz, (p_after ->> 'id')::uuid)
    order by j.claimed_at, j.id
    limit p_rows;
  when 'pending' then
    -- Pending jobs of a queue in the order in which they are claimed. Index: jobs_pending.
    return query
    select j.priority || '_' || j.pos,
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
  when 'scheduled' then
    -- Scheduled jobs, the next one first. Index: jobs_scheduled.
    return query
    select to_char(j.run_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') || '_' || j.id,
      j.id, j.func, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.run_at, j.worker_id,
      j.pushed_at, j.claimed_at, null::timestamptz, j.arguments, j.errors, j.meta
    from {schema}.jobs j
    where j.state = 2
      and j.run_at >= (p_after ->> 'at')::timestamptz
      and (j.run_at, j.id) > ((p_after ->> 'at')::timestamptz, (p_after ->> 'id')::uuid)
    order by j.run_at, j.id
    limit p_rows;
  when 'held' then
    -- Held jobs by queue and position, those on hold last. Index: jobs_held.
    return query
    select jsonb_build_array(j.queue, j.pos, coalesce(j.meta ? 'hold', false))::text,
      j.id, j.func, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.run_at, j.worker_id,
      j.pushed_at, j.claimed_at, null::timestamptz, j.arguments, j.errors, j.meta
    from {schema}.jobs j
    where j.state + 0 = 3
      and (j.queue, coalesce(j.meta ? 'hold', false), j.pos) > (
        p_after ->> 'queue', (p_after ->> 'on_hold')::bool, (p_after ->> 'pos')::bigint)
    order by j.queue, coalesce(j.meta ? 'hold', false), j.pos
    limit p_rows;
  when 'finished' then
    -- Finished jobs, newest first. Index: finished_jobs_id of the partitions, backwards.
    return query
    select j.id::text,
      j.id, j.func, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.run_at, j.worker_id,
      j.pushed_at, j.claimed_at, j.finished_at, j.arguments, j.errors, j.meta
    from {schema}.finished_jobs j
    where j.id < (p_after ->> 'id')::uuid
    order by j.id desc
    limit p_rows;
  when 'ended' then
    -- Finished jobs of a queue, the last one first. Index: finished_jobs_queue of the partitions.
    return query
    select to_char(j.finished_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') || '_' || j.id,
      j.id, j.func, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.run_at, j.worker_id,
      j.pushed_at, j.claimed_at, j.finished_at, j.arguments, j.errors, j.meta
    from {schema}.finished_jobs j
    where j.queue = p_queue
      and j.finished_at <= (p_after ->> 'at')::timestamptz
      and (j.finished_at, j.id) < ((p_after ->> 'at')::timestamptz, (p_after ->> 'id')::uuid)
    order by j.finished_at desc, j.id desc
    limit p_rows;
  when 'failed' then
    -- Failed jobs, the last one first. Index: dead_letters_failed of the partitions, backwards.
    return query
    select to_char(j.finished_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') || '_' || j.id,
      j.id, j.func, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.run_at, j.worker_id,
      j.pushed_at, j.claimed_at, j.finished_at, j.arguments, j.errors, j.meta
    from {schema}.finished_jobs j
    where j.state = 5
      and j.finished_at <= (p_after ->> 'at')::timestamptz
      and (j.finished_at, j.id) < ((p_after ->> 'at')::timestamptz, (p_after ->> 'id')::uuid)
    order by j.finished_at desc, j.id desc
    limit p_rows;
  end case;
end
$$
