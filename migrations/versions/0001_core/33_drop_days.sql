-- Drops the partitions of finished_jobs whose day (UTC) ended more than p_keep days ago, and gives
-- their names. Gives up after 100 ms on a lock, and is called again later. Safe to repeat.
create function {schema}.drop_days(p_keep int) returns setof text
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
  v_name text;
  v_last text := 'finished_jobs_' || to_char(
    (clock_timestamp() at time zone 'UTC')::date - p_keep, 'YYYYMMDD');
begin
  for v_name in
    select c.relname
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    where i.inhparent = '{schema}.finished_jobs'::regclass
      and c.relname ~ '^finished_jobs_[0-9]{8}$'
      and c.relname < v_last
    order by c.relname
  loop
    execute format('drop table {schema}.%I', v_name);
    return next v_name;
  end loop;
end
$$
