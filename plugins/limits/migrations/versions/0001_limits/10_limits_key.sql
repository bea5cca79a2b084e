-- Returns the partition of a job: the value of the only path, or a JSON array of those of all paths.
-- A path is func, key (given at the push), or a path into the arguments; a missing value is ''.
-- Values of over 200 characters are replaced by their hash.
create function {schema}.limits_key(p_bys text[], p_func text, p_arguments jsonb, p_meta jsonb)
returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_values text[] := '{}';
  v_by text;
  v_value text;
begin
  foreach v_by in array p_bys loop
    v_value := coalesce(case v_by
      when 'func' then p_func
      when 'key' then p_meta #>> '{limits,key}'
      else p_arguments #>> string_to_array(v_by, '.') end, '');
    v_values := v_values || case
      when char_length(v_value) > 200 then 'md5:' || md5(v_value) else v_value end;
  end loop;
  return case when cardinality(v_values) = 1 then v_values[1] else to_jsonb(v_values)::text end;
end
$$
