-- Returns the same text for failures of the same kind: of the same function, for the same reason, with
-- the same type of error and the same first line of its message, whatever quoted values, numbers and
-- ids it has. Accepts any value of the column.
create function {schema}.dead_letters_fingerprint(p_func text, p_reason text, p_errors jsonb)
returns text
language sql immutable
return left(md5(
  p_func || chr(10) || p_reason || chr(10) || coalesce(p_errors -> -1 -> 'types' ->> 0, '')
    || chr(10)
    || regexp_replace(
      regexp_replace(
        left(split_part(coalesce(p_errors -> -1 ->> 'message', ''), chr(10), 1), 300),
        '"[^"]*"|''[^'']*''', '*', 'g'),
      '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|0x[0-9a-f]+|[0-9a-f]{12,}|[0-9]+', '#', 'gi')), 16)
