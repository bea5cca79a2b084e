-- Creates the partitions of finished_jobs for today and p_ahead more days, in UTC, or only from the
-- day p_from days ahead. Returns the number of created partitions.
-- A day has one partition. While the last whole day has more than 20,000,000 rows, tomorrow and the
-- day after have one for each hour instead: a day of 100,000,000 rows would be some 60 GB to drop and
-- to vacuum at once.
-- Partitions are attached, not created in place: that would lock the whole table against reads. To
-- split a day drops its empty partition, which does lock it, for as long as 24 tables take to make.
-- A partition gets the owner of the table, of whom the caller may only be a member.
-- Leaves out a day for whose locks it waits 100 ms, or whose rows other sessions change meanwhile, with
-- a warning, and fails if it creates none because of that. Is called again later. Safe to repeat.
create function {schema}.make_days(p_ahead int, p_from int default 0) returns int
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
  v_today date := (clock_timestamp() at time zone 'UTC')::date;
  v_many boolean := (
    select coalesce(sum(c.reltuples), 0) > 20000000
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    where i.inhparent = '{schema}.finished_jobs'::regclass
      and c.relname ~ ('^finished_jobs_' || to_char(v_today - 1, 'YYYYMMDD')));
  v_day date;
  v_table text;
  v_empty boolean;
  v_step interval;
  v_begin timestamp;
  v_name text;
  v_owner text := (
    select r.rolname
    from pg_class c
    join pg_roles r on r.oid = c.relowner
    where c.oid = '{schema}.finished_jobs'::regclass and r.rolname <> current_user);
  v_day_made int;
  v_made int := 0;
  v_postponed text;
  v_state text;
  v_message text;
begin
  for v_day in select v_today + i from generate_series(p_from, p_ahead) as i loop
    begin
      v_day_made := 0;
      v_table := 'finished_jobs_' || to_char(v_day, 'YYYYMMDD');
      v_step := case when v_many and v_day between v_today + 1 and v_today + 2
        then interval '1 hour' else interval '1 day' end;
      if exists (
        select
        from pg_inherits i
        join pg_class c on c.oid = i.inhrelid
        where i.inhparent = '{schema}.finished_jobs'::regclass
          and c.relname ~ ('^' || v_table || '[0-9]{2}$'))
      then
        v_step := '1 hour';
      elsif to_regclass(format('%I.%I', {schema_text}, v_table)) is not null then
        continue when v_step = '1 day';
        execute format('select not exists (select from {schema}.%I)', v_table) into v_empty;
        continue when not v_empty;
        execute format('drop table {schema}.%I', v_table);
      end if;
      for v_begin in
        select * from generate_series(v_day::timestamp, v_day + interval '1 day' - v_step, v_step)
      loop
        v_name := v_table || case v_step when '1 day' then '' else to_char(v_begin, 'HH24') end;
        continue when to_regclass(format('%I.%I', {schema_text}, v_name)) is not null;
        execute format(
          'create table {schema}.%I (like {schema}.finished_jobs including defaults'
          ' including constraints)', v_name);
        execute format('alter table {schema}.%I replica identity full', v_name);
        if v_owner is not null then
          execute format('alter table {schema}.%I owner to %I', v_name, v_owner);
        end if;
        -- Rows that came before their partition did stand in the default one, and would refuse it.
        -- Jobs finish while most of them move, and wait while those move that came meanwhile.
        for v_turn in 1 .. 2 loop
          if v_turn = 2 then
            lock table {schema}.finished_jobs_default in share row exclusive mode;
          end if;
          execute format(
            'with late as (delete from {schema}.finished_jobs_default where finished_at >= %L'
            ' and finished_at < %L returning *) insert into {schema}.%I select * from late',
            v_begin || '+00', v_begin + v_step || '+00', v_name);
        end loop;
        execute format(
          'alter table {schema}.finished_jobs attach partition {schema}.%I'
          ' for values from (%L) to (%L)',
          v_name, v_begin || '+00', v_begin + v_step || '+00');
        v_day_made := v_day_made + 1;
      end loop;
      v_made := v_made + v_day_made;
    exception
    when lock_not_available or check_violation then
      get stacked diagnostics v_state = returned_sqlstate, v_message = message_text;
      v_postponed := concat_ws('; ', v_postponed, format('%s: %s', v_day, v_message));
    end;
  end loop;
  if v_postponed is not null and v_made = 0 then
    raise '%', v_postponed using errcode = v_state, table = 'finished_jobs_default';
  elsif v_postponed is not null then
    raise warning 'days without a partition: %', v_postponed;
  end if;
  return v_made;
end
$$
