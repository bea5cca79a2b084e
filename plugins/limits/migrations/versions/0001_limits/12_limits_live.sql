-- Returns the jobs of a queue that hold a slot: running ones, with p_unfinished also those that wait
-- for another attempt, and with p_block also those that failed and block their sequence; and the
-- partitions of those that hold none any more. Removes these from limits_slots, except a few that
-- share a claim with live ones. A job in another queue holds none, and none once it is moved back.
-- One scan of the jobs, and a full join, which is always hashed: a lookup for each job took six times
-- as long.
-- Index: the primary keys of limits_slots, limits_blocks, jobs, and of finished_jobs since the claim.
-- Locks: none but those of the caller. Safe to repeat.
create function {schema}.limits_live(
  p_queue text, p_unfinished boolean, p_block boolean,
  out ids uuid[], out keys text[], out running boolean[], out freed text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_mergejoin = off
set jit = off
as $$
begin
  with stored as materialized (
    select l.lease, l.claimed_at, u.id, u.key
    from {schema}.limits_slots l
    cross join unnest(l.ids, l.keys) as u (id, key)
    where l.queue = p_queue
  ), job as materialized (
    select j.id, j.state, j.lease, j.queue <> p_queue as moved from {schema}.jobs j
    where j.id = any (array(select s.id from stored s))
  ), slot as materialized (
    select s.*, j.moved, case when not j.moved then j.state in (1, -1) and j.lease = s.lease end as runs
    from stored s full join job j on j.id = s.id
  ), failed as materialized (
    select s.id, s.key from slot s
    where p_block and s.runs is null and exists (
      select from {schema}.finished_jobs f
      where f.id = s.id and f.queue = p_queue
        and f.finished_at > s.claimed_at - interval '1 hour' and f.state = 5)
  ), blocking as (
    insert into {schema}.limits_blocks (queue, id, key)
    select p_queue, f.id, f.key from failed f on conflict do nothing
  ), kept as materialized (
    select s.lease, s.id, s.key, s.runs from slot s
    where s.runs or (p_unfinished and s.runs is not null)
  ), claim as materialized (
    select s.lease, count(*) as slots, bool_or(s.moved) as moved, count(*) filter (
      where s.runs or (p_unfinished and s.runs is not null)) as live
    from slot s group by s.lease
  ), gone as (
    delete from {schema}.limits_slots l using claim c
    where l.queue = p_queue and l.lease = c.lease and c.live = 0
  ), trimmed as (
    update {schema}.limits_slots l
    set ids = array(select k.id from kept k where k.lease = l.lease order by k.id),
      keys = array(select k.key from kept k where k.lease = l.lease order by k.id)
    from claim c
    where l.queue = p_queue and l.lease = c.lease and c.live between 1
      and case when p_block or c.moved then c.slots - 1 else c.slots / 2 end
  )
  select coalesce(array_agg(k.id), '{}'), coalesce(array_agg(k.key), '{}'),
    coalesce(array_agg(coalesce(k.runs, false)), '{}'),
    array(select distinct s.key from slot s
          where not coalesce(s.runs or (p_unfinished and s.runs is not null), false))
  into ids, keys, running, freed
  from (
    select kept.id, kept.key, kept.runs from kept
    union all
    select failed.id, failed.key, false from failed
    union all
    select b.id, b.key, false from {schema}.limits_blocks b
    where p_block and b.queue = p_queue) as k (id, key, runs);
end
$$
