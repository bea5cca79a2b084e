-- Runs failed and cancelled steps again, with fresh attempts, and with p_step that step and all
-- steps behind it. Returns the number of steps; null: there is no such workflow or step, or the step
-- undoes another one; -1: it cannot be retried in its state; -2: some of these steps run; in a
-- cancelled workflow, any step runs, or has ended with an outcome that is not reported yet; -3: some
-- of its steps were purged.
-- Each job is looked up by its id, as in workflows_cancel.
-- Index: the primary keys; all steps of the workflow. Locks: the workflow, exclusively; these
-- steps, their joins. Not to be repeated: it would run them once more.
create function {schema}.workflows_retry(p_id uuid, p_step text) returns int
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_flow {schema}.workflows;
  v_names text[];
  v_let_go text[];
  v_count int;
begin
  perform {schema}.workflows_lock(array[p_id], true);
  select * into v_flow from {schema}.workflows w where w.id = p_id;
  if not found or p_step is not null and not exists (
    select from {schema}.workflows_steps s
    where s.workflow_id = p_id and s.name = p_step and (s.undoes is null or v_flow.undoing)) then
    return null;
  end if;
  if v_flow.state in (2, 7) or v_flow.undoing and p_step is not null
    or v_flow.state in (1, 4) and p_step is null then
    return -1;
  end if;
  if v_flow.steps > (
    select count(*) from {schema}.workflows_steps s where s.workflow_id = p_id) then
    return -3;
  end if;
  with recursive behind (name) as (
    select p_step collate "C" where p_step is not null
    union
    select n.name
    from behind b
    cross join lateral (
      select o.next || o.joins as next from {schema}.workflows_steps o
      where o.workflow_id = p_id and o.name = b.name
      offset 0) as s
    cross join unnest(s.next) as n (name)
    where n.name <> '')
  select array_agg(s.name),
    array(select unnest(d.joins) from {schema}.workflows_steps d
      where d.workflow_id = p_id and d.state in (4, 7) and d.name in (select b.name from behind b))
  into v_names, v_let_go
  from {schema}.workflows_steps s
  where s.workflow_id = p_id and (s.name in (select b.name from behind b)
    or s.state in (5, 6) and (s.undoes is not null) = v_flow.undoing);
  -- A job that was asked to stop ends as cancelled, and would fail the retried workflow. This may not
  -- be reported yet.
  if exists (select from {schema}.workflows_steps s
    where s.workflow_id = p_id and s.state = 0 and (v_flow.state = 6 or s.name = any (v_names))
      and (exists (select from {schema}.jobs j where j.id = s.job_id offset 0)
        or v_flow.state = 6
          and exists (select from {schema}.finished_jobs f where f.id = s.job_id offset 0))) then
    return -2;
  end if;
  v_count := coalesce(cardinality(v_names), 0);
  -- The worker of a stopped job may still report it. With a new run, that outcome does not count.
  if v_flow.state = 6 then
    v_names := v_names || array(
      select s.name from {schema}.workflows_steps s
      where s.workflow_id = p_id and s.state = 0 and s.func is not null
        and {schema}.workflows_ready(p_id, s.name, s.needs, s.previous));
  end if;
  perform {schema}.workflows_again(p_id, v_names, v_let_go);
  return v_count;
end
$$
