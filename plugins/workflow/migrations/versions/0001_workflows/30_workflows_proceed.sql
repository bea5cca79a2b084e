-- Starts one piece that settlements have left, of a workflow that no transaction holds; returns
-- whether there was one.
-- Index: the primary keys. Locks: the workflow, shared, or exclusively where signals came early,
-- and the piece, skipping locked ones; then as workflows_begin. Safe to repeat.
create function {schema}.workflows_proceed() returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
declare
  v_id uuid;
  v_names text[];
begin
  select t.workflow_id into v_id
  from {schema}.workflows_starts t
  join {schema}.workflows w on w.id = t.workflow_id
  where w.early = 0
  order by t.workflow_id, t.id
  limit 1
  for share of w skip locked;
  if not found then
    select t.workflow_id into v_id
    from {schema}.workflows_starts t
    join {schema}.workflows w on w.id = t.workflow_id
    where w.early > 0
    order by t.workflow_id, t.id
    limit 1
    for no key update of w skip locked;
    if not found then
      return false;
    end if;
  end if;
  delete from {schema}.workflows_starts t
  where t.workflow_id = v_id and t.id = (
    select o.id
    from {schema}.workflows_starts o
    where o.workflow_id = v_id
    order by o.id
    limit 1
    for update skip locked)
  returning t.names into v_names;
  if not found then
    return false;
  end if;
  perform {schema}.workflows_begin(array_fill(v_id, array[cardinality(v_names)]), v_names, 1000);
  return true;
end
$$
