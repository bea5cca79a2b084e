-- The components that have a version table in the schema, whether their plugins are installed or
-- not. Recognizes such a table by the name that Alembic gives its primary key. Reads catalogs. No
-- locks. Safe to repeat.
select left(c.relname, -length('_version'))
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
join pg_catalog.pg_constraint k on k.conrelid = c.oid and k.conname = c.relname || '_pkc'
where n.nspname = {schema_text}
  and c.relkind = 'r'
  and right(c.relname, length('_version')) = '_version'
order by 1
