-- The channel of this schema: hashed, since LISTEN cuts names at 63 bytes without a word.
create function {schema}.channel() returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
return 'chancy_' || left(encode(sha256(convert_to({schema_text}, 'UTF8')), 'hex'), 12)
