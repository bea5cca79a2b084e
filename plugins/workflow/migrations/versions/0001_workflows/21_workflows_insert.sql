-- Adds steps to a workflow, each waiting, with their joins. p_arguments is one JSON array for all
-- of them, each element an object; queues, priorities, functions, attempts and on_failure have one
-- element where all steps share it; the other parameters are null where they do not apply.
-- Index: the primary keys. Locks: the rows that it inserts. Called by push and extend alone.
create function {schema}.workflows_insert(
  p_id uuid, p_place int, p_names text[], p_next text[], p_joins text[], p_needs int[], p_jobs uuid[], p_queues text[],
  p_priorities smallint[], p_funcs text[], p_arguments text, p_froms text[], p_run_ats timestamptz[],
  p_delays float8[], p_max_attempts int[], p_limits text[], p_metas text[], p_on_failure smallint[],
  p_undoes text[], p_previous text[], p_by text
) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
  select {schema}.check_counted(p_queues, 'a step');
  insert into {schema}.workflows_steps (
    workflow_id, name, place, needs, next, joins, job_id, queue, priority, func, arguments, froms, run_at,
    delay_s, max_attempts, limits, meta, on_failure, undoes, previous, added_by)
  select p_id, t.name, p_place + t.place, t.needs, t.next::text[], t.joins::text[], t.job,
    case when cardinality(p_queues) = 1 then p_queues[1] else t.queue end,
    case when cardinality(p_priorities) = 1 then p_priorities[1] else t.priority end,
    case when cardinality(p_funcs) = 1 then p_funcs[1] else t.func end,
    t.arguments, t.froms::jsonb, t.run_at, t.delay_s,
    case when cardinality(p_max_attempts) = 1 then p_max_attempts[1] else t.max_attempts end,
    t.limits::jsonb, t.meta::jsonb,
    case when cardinality(p_on_failure) = 1 then p_on_failure[1] else t.on_failure end,
    t.undoes, t.previous, p_by
  from rows from (
    unnest(p_names, p_next, p_joins, p_needs, p_jobs, p_queues, p_priorities, p_funcs, p_froms, p_run_ats,
      p_delays, p_max_attempts, p_limits, p_metas, p_on_failure, p_undoes, p_previous),
    jsonb_array_elements(p_arguments::jsonb)) with ordinality as t (
      name, next, joins, needs, job, queue, priority, func, froms, run_at, delay_s, max_attempts, limits, meta,
      on_failure, undoes, previous, arguments, place);
  insert into {schema}.workflows_joins (workflow_id, name, missing)
  select p_id, t.name, t.needs
  from unnest(p_names, p_needs) as t (name, needs)
  where t.needs > 1;
$$
