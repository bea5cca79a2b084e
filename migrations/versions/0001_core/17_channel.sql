-- The notification channel of this schema. The name is hashed, since LISTEN silently truncates
-- names to 63 bytes.
create function {schema}.channel() returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
return 'chancy_' || left(encode(sha256(convert_to({schema_text}, 'UTF8')), 'hex'), 12)
