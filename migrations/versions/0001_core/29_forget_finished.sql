-- Empties the partition of recently_finished that is used next, whose ids are more than a minute
-- old. Fails after waiting 100 ms for its lock, and is called again later.
-- Index: none. Locks: that partition, to which no settlement of this minute writes. Safe to repeat.
create function {schema}.forget_finished() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
  v_next bigint := (extract(epoch from clock_timestamp())::bigint / 60 + 1) % 3;
  v_any boolean;
begin
  execute format('select exists (select from {schema}.recently_finished_%s)', v_next) into v_any;
  if v_any then
    execute format('truncate {schema}.recently_finished_%s', v_next);
  end if;
end
$$
