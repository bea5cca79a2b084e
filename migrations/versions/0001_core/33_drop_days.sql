-- Drops the oldest partition of finished_jobs whose day (UTC) ended more than p_keep days ago and that
-- no other session uses, and returns its name; fails if others use all of them.
-- Call the function again, in another transaction, until it returns no name. One
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
  v_held text;
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
  for v_name in
    select c.relname
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    where i.inhparent = '{schema}.finished_jobs'::regclass
      and c.relname ~ '^finished_jobs_([0-9]{8}|[0-9]{10})$'
      and c.relname < v_last
    order by c.relname
  loop
    begin
      execute format('lock table {schema}.%I in access exclusive mode nowait', v_name);
    exception
    when undefined_table then
      continue;  -- dropped in the meantime
    when lock_not_available then
      v_held := concat_ws(', ', v_held, v_name);
      continue;
    end;
    execute format('drop table {schema}.%I', v_name);
    return next v_name;
    return;
  end loop;
  if v_held is not null then
    raise 'another session uses %', v_held using errcode = 'lock_not_available';
  end if;
end
$$
