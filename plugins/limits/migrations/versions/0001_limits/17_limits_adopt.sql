-- Stores a slot for each running job of a queue that has none: it was claimed before the queue had
-- rules that count slots, or its slot was deleted. Returns how many. Deletes all of them if no rule
-- counts slots.
-- Index: jobs_running as a whole, the primary key of limits_slots. Locks: none but those of the
-- caller. Safe to repeat.
create function {schema}.limits_adopt(p_queue text) returns int
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
  v_adopted int;
begin
  if not exists (
    select from {schema}.limits_queues q
    where q.queue = p_queue and q.kinds && '{concurrency,sequential}') then
    delete from {schema}.limits_slots l where l.queue = p_queue;
    return 0;
  end if;
  with slot as (
    select u.id, l.lease from {schema}.limits_slots l cross join unnest(l.ids) as u (id)
    where l.queue = p_queue
  ), missing as (
    select j.lease, j.id, {schema}.limits_key(q.bys, j.func, j.arguments, j.meta) as key
    from {schema}.jobs j
    join {schema}.limits_queues q on q.queue = j.queue
    where j.state = 1 and j.queue = p_queue
      and not exists (select from slot s where s.id = j.id and s.lease = j.lease)
  ), stored as (
    insert into {schema}.limits_slots as l (queue, lease, ids, keys)
    select p_queue, m.lease, array_agg(m.id), array_agg(m.key) from missing m group by m.lease
    on conflict (queue, lease) do update
    set ids = l.ids || excluded.ids, keys = l.keys || excluded.keys)
  select count(*) into v_adopted from missing;
  return v_adopted;
end
$$
