-- Those of the tables $1 that this database has. No locks. Safe to repeat.
select c.relname
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where n.oid = '{schema}'::regnamespace
  and c.relname = any($1::text[])
