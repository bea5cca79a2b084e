-- Returns the queues whose jobs are in Redis, and reach it by the outbox of the redis plugin.
-- Without its table there are none: a job of such a queue is then a row here, and still runs.
-- Index: none, all queues. No locks.
create function {schema}.workflows_elsewhere() returns text[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if to_regclass('{schema}.redis_outbox') is null then
    return '{}';
  end if;
  return array(select q.name from {schema}.queues q where q.broker = 'redis');
end
$$
