-- Returns how many jobs of a queue without partition keys hold a slot: the running ones. Removes
-- others from limits_slots, as limits_live does. Every claim of the queue stores its lease there.
-- p_enough: jobs that have ended may be counted, too, if there are no more than this with them, so that
-- most claims look up no jobs while a limit does not bind; null: the number does not matter.
-- Index: the primary keys of limits_slots and jobs. Locks: none but those of the caller. Safe to
-- repeat.
create function {schema}.limits_running(p_queue text, p_enough int) returns int
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_running int; v_claims int;
begin
  select count(*), coalesce(sum(cardinality(l.ids)), 0) into v_claims, v_running
  from {schema}.limits_slots l where l.queue = p_queue;
  if v_claims < 20 and (p_enough is null or v_running <= p_enough) then
    return v_running;
  end if;
  with slot as materialized (
    select l.lease, l.ids from {schema}.limits_slots l where l.queue = p_queue
  ), running as materialized (
    select j.id, j.lease from {schema}.jobs j
    where j.id = any (array(select unnest(s.ids) from slot s)) and j.queue = p_queue
      and j.state in (1, -1) and j.lease in (select s.lease from slot s)
  ), claim as materialized (
    select s.lease, cardinality(s.ids) as slots, coalesce(r.ids, '{}') as ids
    from slot s
    left join (
      select r.lease, array_agg(r.id) as ids from running r group by r.lease) r on r.lease = s.lease
  ), gone as (
    delete from {schema}.limits_slots l using claim c
    where l.queue = p_queue and l.lease = c.lease and c.ids = '{}'
  ), trimmed as (
    update {schema}.limits_slots l
    set ids = c.ids, keys = l.keys[:cardinality(c.ids)]
    from claim c
    where l.queue = p_queue and l.lease = c.lease
      and cardinality(c.ids) between 1 and c.slots / 2
  )
  select count(*) into v_running from running;
  return v_running;
end
$$
