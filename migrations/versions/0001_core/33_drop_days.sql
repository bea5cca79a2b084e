-- Drops the oldest partition of finished_jobs whose day (UTC) ended more than p_keep days ago, and
-- returns its name; call the function again, in another transaction, until it returns no name. One
-- partition at a time, as each drop blocks all use of the table until its transaction ends. First it
-- deletes rows of that age from the default partition, 10,000 a call, and returns its name.
-- Stops after waiting 100 ms for a lock, and is called again later. Safe to repeat.
create function {schema}.drop_days(p_keep int) returns setof text
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
  v_name text;
  v_day date := (clock_timestamp() at time zone 'UTC')::date - p_keep;
  v_last text := 'finished_jobs_' || to_char(v_day, 'YYYYMMDD');
begin
  delete from {schema}.finished_jobs_default
  where ctid = any (array(
    select d.ctid
    from {schema}.finished_jobs_default d
    where d.finished_at < v_day::timestamp at time zone 'UTC'
    limit 10000
    for update skip locked));
  if found then
    return next 'finished_jobs_default';
    return;
  end if;
  select c.relname into v_name
  from pg_inherits i
  join pg_class c on c.oid = i.inhrelid
  where i.inhparent = '{schema}.finished_jobs'::regclass
    and c.relname ~ '^finished_jobs_([0-9]{8}|[0-9]{10})$'
    and c.relname < v_last
  order by c.relname
  limit 1;
  if found then
    execute format('drop table {schema}.%I', v_name);
    return next v_name;
  end if;
end
$$
