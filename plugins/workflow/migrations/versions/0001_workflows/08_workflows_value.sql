-- What an argument is given of the results of other steps, as JSON; null if there is nothing.
-- p_from: {"step": name} or {"steps": [names]} or {"prefix": of names}, and the "path" into each.
-- A step that gave nothing counts as null. Lists of over 64 MiB are not made: the argument is missing
-- then, and the job says so.
-- Index: the primary key of workflows_steps. No locks.
create function {schema}.workflows_value(p_id uuid, p_from jsonb) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  v_path text[] := array(select jsonb_array_elements_text(p_from -> 'path'));
  v_name text := p_from ->> 'step';
  v_prefix text := p_from ->> 'prefix';
begin
  if v_name is not null then
    return (
      select coalesce(s.result, 'null') #> v_path
      from {schema}.workflows_steps s
      where s.workflow_id = p_id and s.name = v_name);
  end if;
  if v_prefix is not null then
    return (
      select case when coalesce(sum(pg_column_size(s.result)), 0) < 67108864
        then coalesce(jsonb_agg(coalesce(s.result, 'null') #> v_path order by s.place), '[]') end
      from {schema}.workflows_steps s
      where s.workflow_id = p_id
        and s.name >= v_prefix collate "C"
        and s.name < (v_prefix || chr(1114111)) collate "C"
        and s.undoes is null);
  end if;
  return (
    select case when coalesce(sum(pg_column_size(s.result)), 0) < 67108864
      then coalesce(jsonb_agg(coalesce(s.result, 'null') #> v_path order by n.place), '[]') end
    from jsonb_array_elements_text(p_from -> 'steps') with ordinality as n (name, place)
    join {schema}.workflows_steps s on s.workflow_id = p_id and s.name = n.name);
end
$$
