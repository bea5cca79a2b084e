-- Notifies the workers of a queue that it has new pending jobs.
-- Guarded by a lock: of concurrent transactions that would send this notice, only one does, since
-- each NOTIFY takes a cluster-wide lock until its commit is flushed. The guard is released when the
-- transaction ends. Polling finds the jobs of a notice that is lost this way.
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
