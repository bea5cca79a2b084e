-- Lines up the partitions that have a turn behind their tenants, which take turns instead: partitions
-- of fair shares whose tenant may have several, as there is another key. The place of the tenant in a
-- key is p_by_no. A tenant that has left the ring to wait for another rule gets its place back: at the
-- end, it would find the slot that it waits for taken by those before it, over and over. Returns the
-- first turn of the ring. The caller has locked the queue.
-- Nested loops, whatever the caller has set: a hash join reads all tenants of the queue.
-- Index: limits_partitions_ring from the first turn, the primary key of limits_tenants. Locks: none but
-- those of the caller. Safe to repeat.
create function {schema}.limits_line_up(s {schema}.limits_queues, p_by_no int) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_nestloop = on
set jit = off
as $$
declare
  v_first bigint;
begin
  with lined as (
    update {schema}.limits_partitions p
    set turn = null, last_turn = p.turn, unfinished = null,
      tenant = {schema}.limits_group(coalesce(p.head, p.key), p_by_no, cardinality(s.bys)),
      blocked = '0:' || {schema}.limits_group(coalesce(p.head, p.key), p_by_no, cardinality(s.bys))
    where p.queue = s.queue and p.priority = 0 and p.turn >= (s.ring ->> '0')::bigint
    returning p.tenant, p.last_turn
  ), joined as (
    insert into {schema}.limits_tenants as t (queue, tenant, turn)
    select s.queue, n.tenant, coalesce(n.last_turn, nextval('{schema}.limits_turns'))
    from (
      select l.tenant, o.last_turn from lined l
      left join {schema}.limits_tenants o on o.queue = s.queue and o.tenant = l.tenant
      group by l.tenant, o.last_turn order by min(l.last_turn)) n
    on conflict (queue, tenant) do update set turn = excluded.turn
    where t.turn is null
    returning t.turn)
  select least((s.ring ->> '0')::bigint, min(j.turn)) into v_first from joined j;
  return v_first;
end
$$
