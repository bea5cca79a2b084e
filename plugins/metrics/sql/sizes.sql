-- Workers; dead rows of the live table by the statistics; bytes of the live table and of the history
-- with their indexes; for how many seconds the session or prepared transaction with the oldest snapshot
-- of this database has held it, as far as this role may see it, by the definition of the check horizon
-- of chancy doctor; how many transactions behind the oldest snapshot is, those of replication slots and
-- replicas too, which have no age in seconds. Reads catalogs and sizes of files. No locks. Safe to repeat.
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
    select extract(epoch from clock_timestamp() - h.began)
    from (
      select a.xact_start, greatest(age(a.backend_xid), age(a.backend_xmin))
      from pg_catalog.pg_stat_activity as a
      where a.datname = current_database()
        and a.pid <> pg_backend_pid()
        and a.backend_type <> 'autovacuum worker'
        and a.xact_start is not null
        and (a.backend_xid is not null or a.backend_xmin is not null)
      union all
      select p.prepared, age(p.transaction)
      from pg_catalog.pg_prepared_xacts as p
      where p.database = current_database()) as h (began, behind)
    order by h.behind desc, h.began
    limit 1), 0)::float8,
  greatest(
    coalesce((
      select max(greatest(age(a.backend_xid), age(a.backend_xmin)))
      from pg_catalog.pg_stat_activity as a
      where a.datname = current_database()
        and a.pid <> pg_backend_pid()
        and a.backend_type <> 'autovacuum worker'), 0),
    coalesce((
      select max(age(p.transaction))
      from pg_catalog.pg_prepared_xacts as p
      where p.database = current_database()), 0),
    coalesce((select max(age(s.xmin)) from pg_catalog.pg_replication_slots as s), 0),
    coalesce((select max(age(r.backend_xmin)) from pg_catalog.pg_stat_replication as r), 0))::bigint
