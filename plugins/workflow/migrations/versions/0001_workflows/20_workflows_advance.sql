-- Takes the ends of steps, and starts what they let go on. p_states: 4, 5 or 6, as those of jobs;
-- p_results: JSON; p_errors: JSON of what failed; p_took_s: how long they ran. A step counts once, in
-- the run that it is in. p_alone: whether any has not succeeded, or had failed before.
-- Index: the primary keys. Locks, in this order: workflows by id, steps in the order given, joins by
-- id and name. Steps that end at once share the lock of their workflow. Safe to repeat.
create function {schema}.workflows_advance(
  p_ids uuid[], p_names text[], p_runs int[], p_jobs uuid[], p_states smallint[], p_results text[],
  p_errors text[], p_took_s float8[], p_alone boolean
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  v_ids uuid[]; v_names text[]; v_counts int[]; v_failed uuid[]; v_failed_names text[];
begin
  perform {schema}.workflows_lock(p_ids, p_alone);
  if to_regclass('{schema}.redis_outbox') is not null then
    delete from {schema}.workflows_away a
    using unnest(p_ids, p_jobs) as d (id, job)
    where a.workflow_id = d.id and a.job_id = d.job;
  end if;
  if p_alone then
    perform {schema}.workflows_forgive(p_ids, p_names, p_runs, p_states);
  end if;
  with done as (
    update {schema}.workflows_steps s
    set state = case when d.state > 4 and s.on_failure = 1 then 7 else d.state end,
      job_id = coalesce(d.job, s.job_id), result = d.result::jsonb, error = d.error::jsonb,
      finished_at = clock_timestamp(), took_s = d.took_s
    from unnest(p_ids, p_names, p_runs, p_jobs, p_states, p_results, p_errors, p_took_s)
      as d (id, name, run, job, state, result, error, took_s)
    where s.workflow_id = d.id and s.name = d.name and s.run = d.run and s.state = 0
    returning s.workflow_id as id, s.name, s.state, s.next
  ), let_go as (
    select t.id, t.name, count(*)::int as count
    from (select d.id, unnest(d.next) as name from done d where d.state in (4, 7)) as t
    group by t.id, t.name order by t.id, t.name
  ), failed as (
    select d.id, d.name from done d where d.state in (5, 6))
  select l.ids, l.names, l.counts, f.ids, f.names
  into v_ids, v_names, v_counts, v_failed, v_failed_names
  from (select array_agg(l.id) as ids, array_agg(l.name) as names, array_agg(l.count) as counts
        from let_go l) as l,
    (select array_agg(f.id) as ids, array_agg(f.name) as names from failed f) as f;
  -- First, so that nothing begins that ended well beside it has let go.
  if v_failed is not null then
    perform {schema}.workflows_fail(v_failed, v_failed_names);
  end if;
  if v_ids is not null then
    update {schema}.workflows_joins j
    set missing = j.missing - l.count
    from unnest(v_ids, v_names, v_counts) as l (id, name, count)
    where j.workflow_id = l.id and j.name = l.name;
    perform {schema}.workflows_start(v_ids, v_names);
    if '' = any (v_names) then
      perform {schema}.workflows_finish(v_ids);
    end if;
  end if;
  perform {schema}.workflows_turn(w.id)
  from {schema}.workflows w where w.id = any (p_ids) and w.state in (2, 3, 5) order by w.id;
end
$$
