-- Lets the sequence p_value of a queue go on behind jobs that failed and block it; null: all sequences.
-- Returns the ids of these jobs, and notifies workers.
-- Index: the primary keys, limits_partitions_blocked. Locks: the row of limits_queues. Safe to repeat.
create function {schema}.limits_skip(p_queue text, p_value text) returns setof uuid
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  s {schema}.limits_queues;
  v_by_no int;
begin
  select * into s from {schema}.limits_queues q where q.queue = p_queue for update;
  v_by_no := s.by_nos[array_position(s.kinds, 'sequential')];
  return query
  with gone as (
    delete from {schema}.limits_blocks b
    where b.queue = p_queue and (p_value is null
      or {schema}.limits_group(b.key, v_by_no, cardinality(s.bys)) = p_value)
    returning b.id, b.key
  ), ready as (
    update {schema}.limits_partitions p
    set blocked = null, ready_at = clock_timestamp()
    where p.queue = p_queue and p.blocked = any (array(
      select array_position(s.kinds, 'sequential') || ':'
        || {schema}.limits_group(g.key, v_by_no, cardinality(s.bys))
      from gone g))
  )
  select g.id from gone g;
  perform {schema}.wake(p_queue, false);
end
$$
