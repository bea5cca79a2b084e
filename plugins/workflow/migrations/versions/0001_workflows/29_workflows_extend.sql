-- Adds steps to a running workflow, from one of its steps while that step runs: p_by, in p_run,
-- whose job is p_job under p_lease. p_most: the maximum number of steps after the call, without
-- those that undo. p_ends and p_before, p_from and p_to: see workflows_attach; the others are those
-- of workflows_insert. Returns the outcome: added, lost (the lease is gone), over, failing (nothing
-- begins any more), many (and how many there would be), begun (one of p_before), circle.
-- Index: the primary keys. Locks: the row of the job, shared, so that it does not end meanwhile;
-- the workflow, exclusively; then as its callees. Not to be repeated: the names are taken.
create function {schema}.workflows_extend(
  p_id uuid, p_by text, p_run int, p_job uuid, p_lease uuid, p_most int, p_before text[],
  p_from text[], p_to text[], p_ends text[], p_names text[], p_next text[], p_joins text[], p_needs int[],
  p_jobs uuid[], p_queues text[], p_priorities smallint[], p_funcs text[], p_arguments text,
  p_froms text[], p_run_ats timestamptz[], p_delays float8[], p_max_attempts int[], p_limits text[],
  p_metas text[], p_on_failure smallint[], p_undoes text[], p_previous text[]
) returns text
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
declare
  v_flow {schema}.workflows;
  v_count bigint;
begin
  perform from {schema}.jobs j where j.id = p_job and j.lease = p_lease and j.state = 1 for share;
  if not found then
    return 'lost';
  end if;
  perform {schema}.workflows_lock(array[p_id], true);
  select * into v_flow from {schema}.workflows w where w.id = p_id;
  if not exists (select from {schema}.workflows_steps s where s.workflow_id = p_id
    and s.name = p_by and s.run = p_run and s.state = 0) or v_flow.state > 3 then
    return 'over';
  end if;
  if v_flow.state <> 1 then
    return 'failing';
  end if;
  if v_flow.steps + cardinality(p_names) > p_most then
    select count(*) + cardinality(p_names) - (select count(u.name) from unnest(p_undoes) as u (name))
    into v_count
    from {schema}.workflows_steps s where s.workflow_id = p_id and s.undoes is null;
    if v_count > p_most then
      return 'many ' || v_count;
    end if;
  end if;
  if exists (select from unnest(p_before) as u (name)
    cross join lateral (
      select o.name, o.state, o.needs, o.previous from {schema}.workflows_steps o
      where o.workflow_id = p_id and o.name = u.name
      offset 0) as s
    where s.state <> 0 or {schema}.workflows_ready(p_id, s.name, s.needs, s.previous)) then
    return 'begun';
  end if;
  if {schema}.workflows_reaches(p_id, p_before, p_from) then
    return 'circle';
  end if;
  update {schema}.workflows w set steps = w.steps + cardinality(p_names) where w.id = p_id;
  perform {schema}.workflows_insert(
    p_id, v_flow.steps, p_names, p_next, p_joins, p_needs, p_jobs, p_queues, p_priorities, p_funcs,
    p_arguments, p_froms, p_run_ats, p_delays, p_max_attempts, p_limits, p_metas, p_on_failure,
    p_undoes, p_previous, p_by);
  perform {schema}.workflows_attach(p_id, p_from, p_to, p_ends, p_before);
  perform {schema}.workflows_begin(array_agg(p_id), array_agg(s.name order by s.place))
  from (select p_id as id, u.name from unnest(p_names) as u (name) offset 0) as n
  join {schema}.workflows_steps s on s.workflow_id = n.id and s.name = n.name
  where s.undoes is null
    and {schema}.workflows_ready(p_id, s.name, s.needs, s.previous);
  return 'added';
end
$$
