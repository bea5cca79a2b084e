-- Pushes the jobs of steps to Redis: into its outbox, from which its relay takes them after the
-- commit. A step that has a job, here or there, is skipped.
-- Index: the primary keys. Locks: the rows that it inserts; the caller holds the workflows. Safe to
-- repeat while the jobs are unfinished.
create function {schema}.workflows_send(p_ids uuid[], p_names text[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
  with sent as (
    insert into {schema}.workflows_away (workflow_id, job_id, name, run)
    select s.workflow_id, s.job_id, s.name, s.run
    from unnest(p_ids, p_names) as r (id, name)
    join {schema}.workflows_steps s on s.workflow_id = r.id and s.name = r.name
    where not exists (select from {schema}.jobs j where j.id = s.job_id)
    on conflict do nothing
    returning workflow_id, name)
  insert into {schema}.redis_outbox (
    id, queue, priority, func, arguments, run_at, max_attempts, meta, limits)
  select s.job_id, s.queue, s.priority, s.func,
    case when s.froms is null then s.arguments
      else {schema}.workflows_arguments(s.workflow_id, s.arguments, s.froms) end,
    coalesce(s.run_at, clock_timestamp() + s.delay_s * interval '1 second'), s.max_attempts,
    {schema}.workflows_meta(s.meta, s.workflow_id, s.name, s.run), s.limits
  from sent t
  join {schema}.workflows_steps s on s.workflow_id = t.workflow_id and s.name = t.name
  order by s.workflow_id, s.place;
  perform pg_notify({schema}.channel() || '_r', 'w:');
end
$$
