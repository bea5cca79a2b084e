-- Creates the partitions of finished_jobs for today and p_ahead more days, in UTC. Returns the
-- number of created partitions.
-- Partitions are attached, not created in place: that would lock the whole table against reads.
-- Stops after waiting 100 ms for a lock, and is called again later. Safe to repeat.
create function {schema}.make_days(p_ahead int) returns int
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
  v_day date;
  v_name text;
  v_made int := 0;
begin
  for v_day in
    select (clock_timestamp() at time zone 'UTC')::date + i from generate_series(0, p_ahead) as i
  loop
    v_name := 'finished_jobs_' || to_char(v_day, 'YYYYMMDD');
    continue when to_regclass(format('%I.%I', {schema_text}, v_name)) is not null;
    execute format(
      'create table {schema}.%I (like {schema}.finished_jobs including defaults'
      ' including constraints)', v_name);
    -- Rows that came before their day's partition did stand in the default one, and would refuse it.
    execute format(
      'with late as (delete from {schema}.finished_jobs_default where finished_at >= %L'
      ' and finished_at < %L returning *) insert into {schema}.%I select * from late',
      v_day::text || ' 00:00:00+00', (v_day + 1)::text || ' 00:00:00+00', v_name);
    execute format(
      'alter table {schema}.finished_jobs attach partition {schema}.%I for values from (%L) to (%L)',
      v_name, v_day::text || ' 00:00:00+00', (v_day + 1)::text || ' 00:00:00+00');
    v_made := v_made + 1;
  end loop;
  return v_made;
end
$$
