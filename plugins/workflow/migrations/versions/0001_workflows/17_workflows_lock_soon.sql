-- Locks workflows as workflows_lock does, but waits for at most two seconds, or less by lock_timeout:
-- a settlement must not wait for a transaction that hangs.
-- Index: the primary key. Locks: the workflows by id, until the transaction ends.
create function {schema}.workflows_lock_soon(p_ids uuid[], p_alone boolean) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_before text := current_setting('lock_timeout');
begin
  if v_before::interval not between interval '1 ms' and interval '2 s' then
    perform set_config('lock_timeout', '2s', true);
  end if;
  perform {schema}.workflows_lock(p_ids, p_alone);
  perform set_config('lock_timeout', v_before, true);
end
$$
