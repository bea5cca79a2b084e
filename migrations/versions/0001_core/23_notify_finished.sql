-- Sends the notice that a job is finished, as part of the transaction; returns the id of the job.
-- The notice uses a channel of its own, to which workers do not listen.
create function {schema}.notify_finished(p_id uuid) returns uuid
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_notify({schema}.channel() || '_f', 'f:' || p_id);
  return p_id;
end
$$
