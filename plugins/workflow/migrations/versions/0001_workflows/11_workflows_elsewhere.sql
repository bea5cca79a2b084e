-- The queues whose jobs are in Redis, and go there by the outbox of that plugin. Without its table none:
-- a job of such a queue is a row here then, and runs all the same.
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
