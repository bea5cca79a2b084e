-- Stores a workflow and starts the steps that wait for nothing. p_ends: the number of its steps for
-- which no other step waits. The other parameters are those of workflows_insert. Returns false, and
-- does nothing, if a workflow with this id exists.
-- Index: the primary keys. Locks: the rows that it inserts. Safe to repeat.
create function {schema}.workflows_push(
  p_id uuid, p_name text, p_ends int, p_names text[], p_next text[], p_joins text[], p_needs int[], p_jobs uuid[],
  p_queues text[], p_priorities smallint[], p_funcs text[], p_arguments text, p_froms text[],
  p_run_ats timestamptz[], p_delays float8[], p_max_attempts int[], p_limits text[], p_metas text[],
  p_on_failure smallint[], p_undoes text[], p_previous text[]
) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_first text[] := array(
    select t.name
    from unnest(p_names, p_needs) with ordinality as t (name, needs, place)
    where t.needs = 0
    order by t.place);
begin
  insert into {schema}.workflows (id, name, steps)
  values (p_id, p_name, cardinality(p_names))
  on conflict (id) do nothing;
  if not found then
    return false;
  end if;
  perform {schema}.workflows_insert(
    p_id, 0, p_names, p_next, p_joins, p_needs, p_jobs, p_queues, p_priorities, p_funcs, p_arguments, p_froms,
    p_run_ats, p_delays, p_max_attempts, p_limits, p_metas, p_on_failure, p_undoes, p_previous, null);
  insert into {schema}.workflows_joins (workflow_id, name, missing) values (p_id, '', p_ends);
  perform {schema}.workflows_begin(
    array_fill(p_id, array[cardinality(v_first)]), v_first, p_guarded => false);
  return true;
end
$$
