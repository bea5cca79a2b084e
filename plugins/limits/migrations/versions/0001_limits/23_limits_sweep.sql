-- Repairs the state of all queues with rules and notifies workers of jobs that may start: adopts
-- running jobs without a slot, adds partitions that are missing, lifts blocks by failed jobs that were
-- replayed into other queues, lets partitions try again whose group has a free slot, deletes full
-- buckets, and releases the held jobs of queues that have no rules any more. Looks at p_limit blocked
-- partitions, in the order of the groups that block them, from where the last sweep stopped. Leaves out
-- queues that were swept within p_every_s seconds. Takes those first that were swept longest ago, and
-- leaves the rest to the next sweep after 0.5 s, because claims wait for the rows that it locks. Returns
-- the number of queues with state.
-- Index: jobs_running and jobs_limits_held, the latter for p_limit jobs of each queue; the primary
-- keys; for each block, that of dead_letters and finished_jobs_id. Locks: rows of limits_queues,
-- skipping locked ones, and what depends on them. Safe to repeat.
create function {schema}.limits_sweep(p_limit int, p_every_s float8) returns int
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
  s {schema}.limits_queues;
  v_began timestamptz := clock_timestamp();
  v_queues int := (select count(*) from {schema}.limits_queues);
  v_lanes jsonb;
  v_sequenced boolean;
begin
  for s in
    select * from {schema}.limits_queues q
    where q.swept_at not between clock_timestamp() - p_every_s * interval '1 second'
      and clock_timestamp()
    order by q.swept_at, q.queue for update skip locked
  loop
    exit when clock_timestamp() > v_began + interval '0.5 second';
    v_sequenced := 'sequential' = any (s.kinds) and cardinality(s.bys) > 1;
    if not exists (
      select from {schema}.queues q where q.name = s.queue and q.rules is not null) then
      perform {schema}.limits_configure(s.queue, null);
      update {schema}.limits_queues q set swept_at = clock_timestamp() where q.queue = s.queue;
      continue;
    end if;
    perform {schema}.limits_adopt(s.queue);
    if s.strays <> '{}' then
      perform {schema}.limits_release(s.queue, 5000, s.strays);
      update {schema}.limits_queues q
      set strays = array(
        select j.id from {schema}.jobs j where j.id = any (s.strays) and j.state = 3)
      where q.queue = s.queue returning q.strays into s.strays;
    end if;
    -- The claim of a replay lifts the block of its sequence, but not from another queue.
    if to_regprocedure(format('%I.replays_of(uuid)', {schema_text})) is not null then
      perform {schema}.limits_skip(b.queue, {schema}.limits_group(
        b.key, s.by_nos[array_position(s.kinds, 'sequential')], cardinality(s.bys)))
      from {schema}.limits_blocks b
      where b.queue = s.queue and exists (
        select from {schema}.replays_of(b.id) r
        where exists (select from {schema}.jobs j where j.id = r.id and j.queue <> s.queue)
          or exists (
            select from {schema}.finished_jobs f where f.id = r.id and f.queue <> s.queue));
    end if;
    delete from {schema}.limits_buckets b
    where b.queue = s.queue and coalesce(b.paused_until, '-infinity') < clock_timestamp()
      and b.tokens + extract(epoch from clock_timestamp() - b.at) * s.rates[b.rule]
        >= s.bursts[b.rule];
    delete from {schema}.limits_tenants t
    where t.queue = s.queue and t.turn is null and not exists (
      select from {schema}.limits_partitions p
      where p.queue = s.queue and p.tenant = t.tenant);
    with blocked as materialized (
      select b.key, b.blocked, b.last_turn from {schema}.limits_partitions b
      where b.queue = s.queue and b.blocked > greatest(s.swept_to, '1')
      order by b.blocked, b.last_turn limit p_limit
    ), taken as materialized (
      -- Partitions of these groups wait for good reason, unless the first job of a sequence was
      -- cancelled since. Those that fair shares had to read in vain would delay the others of their
      -- tenant.
      select r.no || ':' || {schema}.limits_group(u.key, r.by_no, cardinality(s.bys)) as grp
      from {schema}.limits_slots l
      cross join unnest(l.ids, l.keys) as u (id, key)
      join {schema}.jobs j on j.id = u.id and j.queue = s.queue
      join unnest(s.kinds, s.by_nos, s.maxima) with ordinality as r (kind, by_no, most, no)
        on r.kind = 'sequential'
          or r.kind = 'concurrency' and j.state in (1, -1) and j.lease = l.lease
      where l.queue = s.queue
      group by 1, r.most having count(distinct u.id) >= r.most
    ), held as (
      select distinct on (h.key) h.key, h.head, h.priority, h.pos
      from (
        select j.meta #>> '{limits,partition}' as key, j.priority, j.pos,
          {schema}.limits_key(s.bys, j.func, j.arguments, j.meta) as head
        from {schema}.jobs j
        where j.state = 3 and j.meta ? 'limits' and not j.meta ? 'hold' and j.queue = s.queue
          and j.meta #>> '{limits,partition}' is not null and j.id <> all (s.strays)
        limit p_limit) h
      where not exists (
        select from {schema}.limits_partitions p where p.queue = s.queue and p.key = h.key)
      order by h.key, h.priority desc, h.pos
    ), added as (
      insert into {schema}.limits_partitions (
        queue, key, head, priority, turn, after_priority, after_pos)
      select s.queue, h.key, nullif(h.head, h.key), case when 'fair' = any (s.kinds) then 0 else h.priority end, nextval('{schema}.limits_turns'), 32767, 0 from held h
      on conflict do nothing
      returning priority, turn
    ), again as (
      update {schema}.limits_partitions p
      set turn = w.turn, blocked = null
      from (
        select b.key, nextval('{schema}.limits_turns') as turn
        from (
          select b.key from blocked b
          where v_sequenced or b.blocked not in (select taken.grp from taken)
          order by b.blocked, b.last_turn) b) w
      where p.queue = s.queue and p.key = w.key
      returning p.priority, p.turn)
    select (
      select jsonb_object_agg(r.priority, r.turn) from (
        select u.priority, min(u.turn) as turn
        from (select * from added union all select * from again) u group by 1) r), (
      select case when count(*) = p_limit then max(b.blocked) else '' end from blocked b)
    into v_lanes, s.swept_to;
    update {schema}.limits_queues q
    set swept_at = clock_timestamp(), swept_to = s.swept_to, ring = coalesce(v_lanes, '{}') || (
      select coalesce(jsonb_object_agg(r.priority, r.turn), '{}') from (
        select u.priority, min(u.turn) as turn from (
          select p.priority, p.turn from {schema}.limits_partitions p
          where p.queue = s.queue and p.turn is not null
          union all
          select 0, t.turn from {schema}.limits_tenants t
          where t.queue = s.queue and t.turn is not null) u
        group by 1) r)
    where q.queue = s.queue;
    if exists (
      select from {schema}.limits_partitions p
      where p.queue = s.queue and (p.turn is not null or p.ready_at <= clock_timestamp()))
      or exists (
        select from {schema}.limits_tenants t where t.queue = s.queue and t.turn is not null) then
      perform {schema}.wake(s.queue, false);
    end if;
  end loop;
  return v_queues;
end
$$
