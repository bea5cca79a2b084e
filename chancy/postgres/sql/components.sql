-- The components that have a version table in the schema, with or without a plugin that knows
-- them. The primary key of such a table is named by Alembic. Reads catalogs, locks nothing.
select left(c.relname, -length('_version'))
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
join pg_catalog.pg_constraint k on k.conrelid = c.oid and k.conname = c.relname || '_pkc'
where n.nspname = {schema_text}
  and c.relkind = 'r'
  and right(c.relname, length('_version')) = '_version'
order by 1
