-- Workers; dead rows of the live table by the statistics; bytes of the live table and of the history
-- with their indexes; the age in seconds of the oldest snapshot of this database, as far as this role
-- may see it. Reads catalogs and sizes of files. No locks. Safe to repeat.
select
  (select count(*)::int from {schema}.workers),
  coalesce((
    select s.n_dead_tup
    from pg_catalog.pg_stat_all_tables as s
    where s.relid = to_regclass(format('%I.jobs', {schema_text}))), 0)::bigint,
  pg_total_relation_size(to_regclass(format('%I.jobs', {schema_text}))),
  coalesce((
    select sum(pg_total_relation_size(i.inhrelid))
    from pg_catalog.pg_inherits as i
    where i.inhparent = to_regclass(format('%I.finished_jobs', {schema_text}))), 0)::bigint,
  coalesce((
    select extract(epoch from clock_timestamp() - min(a.xact_start))
    from pg_catalog.pg_stat_activity as a
    where a.datname = current_database()
      and (a.backend_xid is not null or a.backend_xmin is not null)
      and a.pid <> pg_backend_pid()), 0)::float8
