-- Everything in the schema except rows, one line of text each. Daily partitions of the history are
-- left out: they are created as time passes. Reads catalogs, locks nothing.
with relations as (
  select c.oid, c.relname, c.relkind, c.reloptions
  from pg_catalog.pg_class c
  where c.relnamespace = {schema_text}::regnamespace
    and c.relname !~ '^finished_jobs_2'
)
select format('relation %s %s %s', relkind, relname, reloptions)
from relations
union all
select format(
    'column %s.%s %s not null %s default %s', r.relname, a.attname,
    format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid)
  )
from relations r
join pg_catalog.pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where r.relkind in ('r', 'p', 'v', 'm')
union all
select format('index %s', pg_get_indexdef(r.oid))
from relations r
where r.relkind in ('i', 'I')
union all
select format('constraint %s %s %s', r.relname, k.conname, pg_get_constraintdef(k.oid))
from relations r
join pg_catalog.pg_constraint k on k.conrelid = r.oid
union all
select format('trigger %s %s', r.relname, pg_get_triggerdef(t.oid))
from relations r
join pg_catalog.pg_trigger t on t.tgrelid = r.oid and not t.tgisinternal
union all
select format('type %s %s', t.typname, t.typtype)
from pg_catalog.pg_type t
where t.typnamespace = {schema_text}::regnamespace
  and t.typtype in ('d', 'e')
union all
select format('function %s', pg_get_functiondef(p.oid))
from pg_catalog.pg_proc p
where p.pronamespace = {schema_text}::regnamespace
  and p.prokind in ('f', 'p')
order by 1
