-- Of the partitions of today and tomorrow (UTC) those that are missing, by their names; whether that
-- of today is; and about how many rows are in the default partition, by the statistics of the
-- server, which every role may read. No locks. Safe to repeat.
with children (name) as (
  select c.relname::text
  from pg_catalog.pg_inherits as i
  join pg_catalog.pg_class as c on c.oid = i.inhrelid
  where i.inhparent = to_regclass(format('%I.finished_jobs', {schema_text}))),
missing (ahead, name) as (
  select ahead, format('finished_jobs_%s', day)
  from generate_series(0, 1) as ahead
  cross join to_char((clock_timestamp() at time zone 'UTC')::date + ahead, 'YYYYMMDD') as day
  where not exists (
    select from children as c
    where c.name in (format('finished_jobs_%s', day), format('finished_jobs_%s00', day))))
select
  array(select m.name from missing as m order by m.ahead),
  exists (select from missing as m where m.ahead = 0),
  coalesce((
    select s.n_live_tup
    from pg_catalog.pg_stat_all_tables as s
    where s.schemaname = {schema_text}
      and s.relname = 'finished_jobs_default'), 0)
