-- Returns the key of a uniqueness rule with a string, as chancy.unique computes it: from the scope,
-- what the scope covers (the function, the queue, or nothing), and the string.
create function {schema}.unique_key(p_scope text, p_spans text, p_key text) returns bytea
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
return sha256(convert_to(
  p_scope || chr(10) || p_spans || chr(10) || 'key' || chr(10) || p_key, 'UTF8'))
