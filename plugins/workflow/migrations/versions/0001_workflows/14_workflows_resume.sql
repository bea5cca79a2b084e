-- Lets a running workflow go on: starts what waits for nothing any more, as it is after a failed step
-- was run again with success.
-- Index: the primary keys, all steps of the workflow. Locks: those that start; by the caller: the
-- workflow, for itself. Safe to repeat.
create function {schema}.workflows_resume(p_id uuid) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_names text[] := array(
    select s.name
    from {schema}.workflows_steps s
    where s.workflow_id = p_id and s.state = 0
      and (s.undoes is not null) = (select w.undoing from {schema}.workflows w where w.id = p_id)
      and (s.needs <> 1 or s.name in (
        select unnest(p.next)
        from {schema}.workflows_steps p
        where p.workflow_id = p_id and p.state in (4, 7)))
    order by s.place);
begin
  perform {schema}.workflows_start(array_fill(p_id, array[cardinality(v_names)]), v_names);
  perform {schema}.workflows_finish(array[p_id]);
end
$$
