-- Returns the pending, held and running jobs of a queue, up to 10,000 of each, for autoscalers.
-- Refuses a queue that does not exist, and one whose jobs are in another broker. Runs with the rights
-- of its owner, so that the role of a scaler needs none on the tables.
-- Index: those of {schema}.queue_unfinished. No locks. Safe to repeat.
create function {schema}.queue_backlog(p_queue text) returns bigint
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_broker text := (select q.broker from {schema}.queues q where q.name = p_queue);
  v_jobs bigint := {schema}.queue_unfinished(p_queue);
begin
  if v_broker is null and v_jobs = 0 then
    raise exception 'queue % is not declared and has no jobs', quote_literal(p_queue)
      using errcode = 'undefined_object';
  elsif v_broker <> 'postgres' then
    raise exception 'the jobs of queue % are in the broker %', quote_literal(p_queue), v_broker
      using errcode = 'feature_not_supported',
        hint = 'Ask the endpoint /scale/QUEUE of a worker.';
  end if;
  return v_jobs;
end
$$
