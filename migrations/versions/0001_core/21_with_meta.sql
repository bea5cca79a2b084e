-- Merges keys into the meta of a job; new keys replace existing ones. Accepts any value of the
-- column.
-- A change that is not an object is refused: merged into an array, `||` would produce an array.
create function {schema}.with_meta(p_meta jsonb, p_change text) returns jsonb
language sql immutable
return case
  when p_change is null then p_meta
  when p_change !~ '^[[:space:]]*[{]' then ('meta is not an object: ' || p_change)::jsonb
  when jsonb_typeof(p_meta) = 'object' then p_meta || p_change::jsonb
  else p_change::jsonb
end
