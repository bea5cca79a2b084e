-- Sends the notice that a job is finished, with the transaction; returns its id. On a channel of its
-- own, which workers do not hear.
create function {schema}.notify_finished(p_id uuid) returns uuid
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_notify({schema}.channel() || '_f', 'f:' || p_id);
  return p_id;
end
$$
