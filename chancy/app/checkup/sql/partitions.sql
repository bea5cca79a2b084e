-- The names of the missing partitions of today and tomorrow (UTC), one for each hour of a day that has
-- partitions by the hour; whether one of today's is missing; and the approximate number of rows in the
-- default partition, from the statistics of the server, which every role may read. No locks. Safe to
-- repeat.
with children (name) as (
  select c.relname::text
  from pg_catalog.pg_inherits as i
  join pg_catalog.pg_class as c on c.oid = i.inhrelid
  where i.inhparent = to_regclass(format('%I.finished_jobs', {schema_text}))),
days (ahead, name, by_hour) as (
  select
    ahead,
    'finished_jobs_' || day,
    exists (
      select from children as c
      where c.name ~ format('^finished_jobs_%s[0-9]{2}$', day))
  from generate_series(0, 1) as ahead
  cross join to_char((clock_timestamp() at time zone 'UTC')::date + ahead, 'YYYYMMDD') as day),
missing (ahead, name) as (
  select d.ahead, d.name || hour
  from days as d
  cross join lateral (
    select to_char(number, 'FM00') from generate_series(0, 23) as number where d.by_hour
    union all
    select '' where not d.by_hour) as hours (hour)
  where not exists (select from children as c where c.name = d.name || hour))
select
  array(select m.name from missing as m order by m.name),
  exists (select from missing as m where m.ahead = 0),
  coalesce((
    select s.n_live_tup
    from pg_catalog.pg_stat_all_tables as s
    where s.schemaname = {schema_text}
      and s.relname = 'finished_jobs_default'), 0)
