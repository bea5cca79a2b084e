-- The sequence of the schema that has used most of its numbers. Reads catalogs. No locks. Safe to
-- repeat.
select s.sequencename::text, s.last_value::float8 / s.max_value::float8 as used
from pg_catalog.pg_sequences as s
where s.schemaname = {schema_text}
  and s.last_value is not null
order by 2 desc
limit 1
