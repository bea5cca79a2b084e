-- Bytes of the unfinished jobs, of the history with its estimated rows, and of the database. Reads
-- catalogs and the sizes of files, not tables. Locks: shared, those of catalogs. Safe to repeat.
select
  pg_total_relation_size(to_regclass(format('%I.jobs', {schema_text})))::bigint,
  coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint,
  coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint,
  pg_database_size(current_database())::bigint
from pg_catalog.pg_inherits as i
join pg_catalog.pg_class as c on c.oid = i.inhrelid
where i.inhparent = to_regclass(format('%I.finished_jobs', {schema_text}))
