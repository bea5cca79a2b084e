-- Lets the partition p_key of a queue go on behind jobs that failed and block their sequence; null: all
-- partitions. Returns the ids of these jobs, and notifies workers.
-- Index: the primary keys, limits_partitions_blocked. Locks: the row of limits_queues. Safe to repeat.
create function {schema}.limits_skip(p_queue text, p_key text) returns setof uuid
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  perform from {schema}.limits_queues q where q.queue = p_queue for update;
  return query
  with gone as (
    delete from {schema}.limits_blocks b
    where b.queue = p_queue and (p_key is null or b.key = p_key)
    returning b.id, b.key
  ), ready as (
    update {schema}.limits_partitions p
    set blocked = null, ready_at = clock_timestamp()
    where p.queue = p_queue and p.blocked = any (array(
      select r.no || ':' || {schema}.limits_group(g.key, r.by_no, cardinality(q.bys))
      from gone g
      join {schema}.limits_queues q on q.queue = p_queue
      cross join unnest(q.kinds, q.by_nos) with ordinality as r (kind, by_no, no)
      where r.kind = 'sequential'))
  )
  select g.id from gone g;
  perform {schema}.wake(p_queue, false);
end
$$
