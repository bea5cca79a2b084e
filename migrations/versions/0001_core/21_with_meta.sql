-- The meta of a job with other keys put over it. Takes whatever stands in the column.
-- A change that is no object is refused: put over an array, `||` would make an array of it.
create function {schema}.with_meta(p_meta jsonb, p_change text) returns jsonb
language sql immutable
return case
  when p_change is null then p_meta
  when p_change !~ '^\s*\{' then ('meta is not an object: ' || p_change)::jsonb
  when jsonb_typeof(p_meta) = 'object' then p_meta || p_change::jsonb
  else p_change::jsonb
end
