-- Empties the partition of recently_finished that is used next, whose ids are more than a minute
-- old, and deletes those of earlier turns from the partition in use: where jobs finish every hour, it
-- is always the same one. A partition that others read, such as pg_dump, is not emptied: its ids are
-- deleted in its turn.
-- Index: none. Locks: the next partition, to which no settlement of this minute writes, and the rows
-- that it deletes. Safe to repeat.
create function {schema}.forget_finished() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
  v_minute bigint := extract(epoch from clock_timestamp())::bigint / 60;
  v_next bigint := (v_minute + 1) % 3;
  v_any boolean;
begin
  execute format('select exists (select from {schema}.recently_finished_%s)', v_next) into v_any;
  if v_any then
    begin
      execute format('truncate {schema}.recently_finished_%s', v_next);
    exception
    when lock_not_available then
      null;
    end;
  end if;
  delete from {schema}.recently_finished r
  where r.slot = (v_minute % 3)::smallint and r.at < clock_timestamp() - interval '2 minutes';
end
$$
