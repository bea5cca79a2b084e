-- Takes some steps out of a piece that is left to be started, and starts them, or, with p_error
-- (JSON), fails them: a step that the server refuses to start must not block the others. Steps that
-- their failure releases are left in pieces of their own. Returns whether the steps were in the
-- piece.
-- Each step is found by its name, and never among all steps of the workflow.
-- Index: the primary keys. Locks: the workflow, shared or exclusively; the piece; then as
-- workflows_start or workflows_advance. Safe to repeat.
create function {schema}.workflows_part(p_id uuid, p_piece uuid, p_names text[], p_error text)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
declare
  v_count int := cardinality(p_names);
begin
  perform {schema}.workflows_lock(array[p_id], p_error is not null);
  update {schema}.workflows_starts t
  set names = array(
    select u.name
    from unnest(t.names) with ordinality as u (name, place)
    where u.name <> all (p_names)
    order by u.place)
  where t.workflow_id = p_id and t.id = p_piece and t.names @> p_names collate "C";
  if not found then
    return false;
  end if;
  delete from {schema}.workflows_starts t
  where t.workflow_id = p_id and t.id = p_piece and t.names = '{}';
  if p_error is null then
    perform {schema}.workflows_begin(array_fill(p_id, array[v_count]), p_names, 1000);
    return true;
  end if;
  perform {schema}.workflows_advance(
    array_agg(p_id), array_agg(s.name), array_agg(s.run), array_agg(s.job_id),
    array_agg(5::smallint), null, array_agg(p_error), null, true, 0)
  from unnest(p_names) as u (name)
  cross join lateral (
    select o.name, o.run, o.job_id
    from {schema}.workflows_steps o
    where o.workflow_id = p_id and o.name = u.name and o.state = 0
    offset 0) as s
  having count(*) > 0;
  return true;
end
$$
