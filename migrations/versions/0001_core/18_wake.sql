-- Tells the workers of a queue that it has new pending jobs.
-- Guarded: of the transactions that would say so at one moment only one does, since each NOTIFY
-- takes a lock of the whole cluster until its commit is flushed. The lock ends with the
-- transaction; a notice that is lost this way is found by polling.
create function {schema}.wake(p_queue text, p_guarded boolean) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if not p_guarded
    or pg_try_advisory_xact_lock(hashtext({schema}.channel()), hashtext(p_queue)) then
    perform pg_notify({schema}.channel(), 'w:' || p_queue);
  end if;
end
$$
