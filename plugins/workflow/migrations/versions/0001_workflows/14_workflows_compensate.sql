-- Begins to undo a workflow that compensates once nothing of it runs any more: of the steps that
-- succeeded the one that ended last is undone first, and each lets the next one go. Once begun it
-- goes on by itself.
-- Index: the primary keys; all steps of the workflow. Locks: the steps that undo; by the caller: the
-- workflow, for itself. Safe to repeat.
create function {schema}.workflows_compensate(p_id uuid) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_names text[];
begin
  if {schema}.workflows_runs(p_id) or not exists (
      select from {schema}.workflows w where w.id = p_id and w.state = 2 and not w.undoing) then
    return;
  end if;
  update {schema}.workflows w set undoing = true where w.id = p_id;
  v_names := array(
    select u.name
    from {schema}.workflows_steps u
    join {schema}.workflows_steps s on s.workflow_id = p_id and s.name = u.undoes
    where u.workflow_id = p_id and u.undoes is not null and u.state = 0 and s.state = 4
    order by s.finished_at desc, s.place desc);
  update {schema}.workflows_joins j
  set missing = case when cardinality(v_names) > 0 then 1 else 0 end
  where j.workflow_id = p_id and j.name = '';
  update {schema}.workflows_steps s
  set next = array[coalesce(v_names[n.place + 1], '')], previous = v_names[n.place - 1],
    needs = case when n.place = 1 then 0 else 1 end
  from unnest(v_names) with ordinality as n (name, place)
  where s.workflow_id = p_id and s.name = n.name;
  perform {schema}.workflows_start(array[p_id], v_names[1:1]);
  perform {schema}.workflows_finish(array[p_id]);
end
$$
