-- The schemas of the search path in which PUBLIC may create objects, quoted. Reads catalogs, locks
-- nothing. Safe to repeat.
select n.oid::pg_catalog.regnamespace::pg_catalog.text
from pg_catalog.pg_namespace as n
where n.nspname operator(pg_catalog.=) any (pg_catalog.current_schemas(false))
  and pg_catalog.has_schema_privilege('public', n.oid, 'create')
order by 1
