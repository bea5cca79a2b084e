-- Returns the hints after a read, from those before it and the last positions that it passed, both by
-- priority. p_to: the last priority of a read from the front that ended early; more jobs may be before
-- the old hints of this one and those below. Else null.
-- As a function in SQL it would be planned anew by each claim: 0.17 ms.
create function {schema}.limits_hints(p_old jsonb, p_passed jsonb, p_to int) returns jsonb
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  return coalesce((
      select jsonb_object_agg(h.key, h.value) from jsonb_each(p_old) as h
      where p_to is null or h.key::int > p_to), '{}')
    || coalesce((
      select jsonb_object_agg(h.key, case
        when p_to is null then greatest(h.value::bigint, (p_old ->> h.key)::bigint)
        else h.value::bigint end)
      from jsonb_each_text(p_passed) as h), '{}');
end
$$
