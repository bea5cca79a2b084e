-- Returns the value of an argument from the results of other steps, as JSON; null if there is none.
-- p_from: {"step": name} or {"steps": [names]} or {"prefix": of names, "except": the step itself}, and
-- the "path" into each.
-- A step without a result counts as null. Lists of over 64 MiB are not built: the argument is
-- missing then, and the job reports it. The values are measured one by one as they are unpacked,
-- and no further than that: repetitive values are stored in a hundredth of their size, and the
-- server refuses a value of 256 MiB.
-- Index: the primary key of workflows_steps. No locks.
create function {schema}.workflows_value(p_id uuid, p_from jsonb) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
declare
  v_path text[] := array(select jsonb_array_elements_text(p_from -> 'path'));
  v_name text := p_from ->> 'step';
  v_prefix text := p_from ->> 'prefix';
  v_except text := p_from ->> 'except';
  v_value jsonb;
  v_values jsonb[] := '{}';
  v_size bigint := 0;
begin
  if v_name is not null then
    return (
      select coalesce(s.result, 'null') #> v_path
      from {schema}.workflows_steps s
      where s.workflow_id = p_id and s.name = v_name);
  end if;
  for v_value in
    select coalesce(r.result, 'null') #> v_path
    from (
      -- Always by name: if most workflows are small, the planner takes a large one for small, too.
      select s.result, n.place
      from jsonb_array_elements_text(p_from -> 'steps') with ordinality as n (name, place)
      cross join lateral (
        select o.result
        from {schema}.workflows_steps o
        where o.workflow_id = p_id and o.name = n.name
        offset 0) as s
      union all
      select s.result, s.place
      from {schema}.workflows_steps s
      where s.workflow_id = p_id
        and s.name >= v_prefix collate "C"
        and s.name < (v_prefix || chr(1114111)) collate "C"
        and s.undoes is null
        and s.name is distinct from v_except
      order by place
      offset 0) as r
  loop
    v_size := v_size + coalesce(pg_column_size(v_value), 0);
    if v_size > 67108864 then
      return null;
    end if;
    v_values := v_values || v_value;
  end loop;
  return to_jsonb(v_values);
end
$$
