-- Notifies the workers of a queue that it has new pending jobs: the queue, the number of the
-- transaction, by which a few of many workers know that they are to claim, and how many jobs.
-- Guarded by a lock: of concurrent transactions that would send this notice, only one does, since
-- each NOTIFY takes a cluster-wide lock until its commit is flushed. The guard is released when the
-- transaction ends. The jobs of a notice that is lost this way are found by the worker that claims
-- for the other notice, or by a survey.
create function {schema}.wake(p_queue text, p_guarded boolean, p_jobs bigint default 1) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if not p_guarded
    or pg_try_advisory_xact_lock(hashtext({schema}.channel()), hashtext(p_queue)) then
    perform pg_notify({schema}.channel(),
      concat_ws(' ', 'w:' || p_queue, pg_current_xact_id()::text, p_jobs));
  end if;
end
$$
