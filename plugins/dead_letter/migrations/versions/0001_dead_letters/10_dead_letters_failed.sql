-- The same index for the existing partitions, oldest first: settlements wait while the index of
-- today's partition is built.
do $$
declare
  v_day text;
  v_index text;
begin
  for v_day in
    select c.relname
    from pg_catalog.pg_inherits i
    join pg_catalog.pg_class c on c.oid = i.inhrelid
    where i.inhparent = '{schema}.finished_jobs'::regclass
    order by c.relname
  loop
    v_index := 'dead_letters_failed_' || replace(v_day, 'finished_jobs_', '');
    execute format(
      'create index %I on {schema}.%I (finished_at, id) where state = 5', v_index, v_day);
    execute format(
      'alter index {schema}.dead_letters_failed attach partition {schema}.%I', v_index);
  end loop;
end
$$
