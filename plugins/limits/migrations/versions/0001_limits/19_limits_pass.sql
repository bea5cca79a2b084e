-- Gives tenants that have read their partitions in the ring a new turn, if they have started all jobs
-- of their share. A tenant whose partitions all wait for another rule leaves the ring, but keeps its
-- place; one without partitions does not. Returns the first turn of those that keep theirs, else the one
-- behind the last. p_started: how many jobs of each tenant have started; -1: others have locked all of
-- them, and it gets a new turn. The caller has locked the queue.
-- Nested loops, whatever the caller has set: a hash join reads all tenants of the queue.
-- Index: the primary key of limits_tenants, limits_partitions_blocked, limits_partitions_tenant.
-- Locks: none but those of the caller.
create function {schema}.limits_pass(
  p_queue text, p_names text[], p_turns bigint[], p_shares int[], p_started int[]
) returns bigint
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
  with tenant as materialized (
    select u.*, (
        select true from {schema}.limits_partitions p
        where p.queue = p_queue and p.blocked = '0:' || u.name limit 1) as runs
    from unnest(p_names, p_turns, p_shares, p_started)
      with ordinality as u (name, turn, share, started, no)
  ), passed as materialized (
    select n.*, case when n.started in (n.share, -1) or n.started > 0 and n.runs is null
      then nextval('{schema}.limits_turns') else n.turn end as new_turn
    from (select * from tenant t order by t.no) n
  ), kept as (
    update {schema}.limits_tenants t
    set turn = case when n.runs then n.new_turn end, last_turn = (
        select n.new_turn from {schema}.limits_partitions p
        where p.queue = p_queue and p.tenant = n.name limit 1),
      unfinished = case
        when n.runs and n.new_turn = n.turn and n.started > 0 then n.share - n.started
        when n.runs and n.new_turn = n.turn then t.unfinished end
    from passed n
    where t.queue = p_queue and t.tenant = n.name)
  select coalesce(
    (select min(n.turn) from passed n where n.runs and n.new_turn = n.turn),
    (select max(u.turn) + 1 from unnest(p_turns) as u (turn))) into v_first;
  return v_first;
end
$$
