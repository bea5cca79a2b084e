-- Returns the arguments of a step, filled with the results that it refers to. A missing result is
-- left out, so that the job fails with the name of the parameter. A result that brings the total to
-- over 64 MiB is also left out.
create function {schema}.workflows_arguments(p_id uuid, p_arguments jsonb, p_froms jsonb) returns jsonb
language sql stable
return p_arguments || coalesce((
  select jsonb_object_agg(g.key, g.value)
  from (
    select f.key, v.value, sum(pg_column_size(v.value)) over (order by f.key) as size
    from jsonb_each(p_froms) as f
    cross join lateral (select {schema}.workflows_value(p_id, f.value) offset 0) as v (value)) as g
  where g.value is not null and g.size <= 67108864), '{}')
