-- Starts held jobs of up to p_most_parts partitions that have a turn, of priorities from p_from on: at most
-- p_room. Returns the rows to claim in order, with their partitions, their bytes, of which the last one
-- may exceed p_bytes, and the ring behind them. The caller has locked the queue.
-- The joins of the lists are hash joins, whatever the caller has set: nested loops over 1,000 jobs
-- took 50 ms. Index: limits_partitions_ring and jobs_limits_held from the known positions, the primary keys.
-- Locks: rows of jobs, skipping locked ones. Safe to repeat.
create function {schema}.limits_ring(
  s {schema}.limits_queues, p_keys text[], p_running boolean[], p_now timestamptz, p_room int,
  p_most_parts int, p_from smallint, p_bytes bigint,
  out tids tid[], out ids uuid[], out keys text[], out bytes bigint, out ring jsonb
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = on
set enable_nestloop = off
set jit = off
as $$
declare
  v_fair jsonb := (select r.value from jsonb_array_elements(s.rules) r
                   where r.value ->> 'rule' = 'fair');
  v_fair_by int := array_position(s.bys, v_fair ->> 'by');
  v_take int := least(p_room, (
    select min(r.most) from unnest(s.kinds, s.by_nos, s.maxima) as r (kind, by_no, most)
    where r.by_no > 0 and r.kind in ('concurrency', 'sequential')));
  v_turns_each int; v_parts text[]; v_lanes smallint[]; v_turns bigint[];
  c_keys text[]; c_tids tid[]; c_ids uuid[]; c_priorities smallint[]; c_positions bigint[];
  c_takes boolean[]; c_shares int[]; c_oks boolean[]; c_blocked text[]; c_ready timestamptz[];
begin
  select coalesce(array_agg(r.key order by r.priority desc, r.turn), '{}'),
    array_agg(r.priority order by r.priority desc, r.turn),
    array_agg(r.turn order by r.priority desc, r.turn)
  into v_parts, v_lanes, v_turns
  from (
    select p.key, p.priority, p.turn
    from (select l.key::smallint as priority, l.value::bigint as turn
          from jsonb_each_text(s.ring) l where l.key::smallint >= p_from) l
    cross join lateral (
      select p.key, p.priority, p.turn from {schema}.limits_partitions p
      where p.queue = s.queue and p.priority = l.priority and p.turn >= l.turn
      order by p.turn limit least(p_most_parts, p_room)) p
    order by p.priority desc, p.turn limit least(p_most_parts, p_room)) r;
  ring := s.ring;
  if v_parts = '{}' then
    ring := coalesce((
      select jsonb_object_agg(l.key, l.value) from jsonb_each(s.ring) l
      where l.key::smallint < p_from), '{}');
    return;
  end if;
  -- Enough to fill the room; another read takes the rest of a partition with more.
  v_take := least(v_take, greatest(1, 4 * p_room / cardinality(v_parts)));
  -- A turn starts two jobs: the ring costs half of what it does with one. Several turns at once, if
  -- fewer partitions than jobs can start.
  v_turns_each := greatest(2, p_room / (
    select sum(coalesce((v_fair -> 'weights' ->>
      {schema}.limits_group(u.key, v_fair_by, cardinality(s.bys)))::int, 1))
    from unnest(v_parts) as u (key)));
  -- The first jobs of each partition, and one more, which shows whether there are others.
  select array_agg(c.key order by c.place, c.nth), array_agg(c.tid order by c.place, c.nth),
    array_agg(c.id order by c.place, c.nth), array_agg(c.priority order by c.place, c.nth),
    array_agg(c.pos order by c.place, c.nth), array_agg(c.nth <= c.take order by c.place, c.nth),
    array_agg(c.take order by c.place, c.nth)
  into c_keys, c_tids, c_ids, c_priorities, c_positions, c_takes, c_shares
  from (
    select r.key, r.place, r.take, j.tid, j.id, j.priority, j.pos,
      row_number() over (partition by r.place order by j.priority desc, j.pos) as nth
    from (
      select u.key, u.place, p.after_priority, p.after_pos,
        case when v_fair is null then v_take
          else coalesce(p.unfinished, v_turns_each * coalesce((v_fair -> 'weights' ->>
            {schema}.limits_group(u.key, v_fair_by, cardinality(s.bys)))::int, 1)) end as take
      from unnest(v_parts) with ordinality as u (key, place)
      cross join lateral (
        select * from {schema}.limits_partitions p
        where p.queue = s.queue and p.key = u.key limit 1) p
    ) r
    cross join lateral (
      select * from (
        select j.ctid as tid, j.id, j.priority, j.pos from {schema}.jobs j
        where j.state = 3 and j.meta ? 'limits' and j.queue = s.queue
          and j.meta #>> '{limits,partition}' = r.key
          and j.priority = r.after_priority and j.pos > r.after_pos
          and j.id <> all (s.strays)
          and not {schema}.expired(j.expires_at, j.attempt, j.crashes)
        order by j.priority desc, j.pos limit r.take + 1) same
      union all
      select * from (
        select j.ctid, j.id, j.priority, j.pos from {schema}.jobs j
        where j.state = 3 and j.meta ? 'limits' and j.queue = s.queue
          and j.meta #>> '{limits,partition}' = r.key and j.priority < r.after_priority
          and j.id <> all (s.strays)
          and not {schema}.expired(j.expires_at, j.attempt, j.crashes)
        order by j.priority desc, j.pos limit r.take + 1) lower
      limit r.take + 1) j) c;
  select * into c_oks, c_blocked, c_ready
  from {schema}.limits_judge(s, p_keys, p_running, p_now, c_keys, null, array(
    select not c.take and v_fair is not null
    from unnest(c_takes) with ordinality as c (take, no) order by c.no));
  -- Those that are locked elsewhere, for example by a cancellation, wait.
  with chosen as materialized (
    select f.tid, f.key, f.no from unnest(c_tids, c_keys, c_oks)
      with ordinality as f (tid, key, ok, no)
    where f.ok order by f.no limit p_room)
  select coalesce(array_agg(l.tid order by l.no), '{}'), coalesce(array_agg(l.id order by l.no), '{}'),
    coalesce(array_agg(l.key order by l.no), '{}'), coalesce(sum(l.bytes), 0)
  into tids, ids, keys, bytes
  from (
    select f.*, sum(f.bytes) over (order by f.no) - f.bytes as bytes_before
    from (
      select j.ctid as tid, j.id, c.key, c.no,
        coalesce(pg_column_size(j.arguments), 0) + coalesce(pg_column_size(j.meta), 0) as bytes
      from {schema}.jobs j
      join chosen c on c.tid = j.ctid
      where j.state = 3 and j.ctid = any (array(select chosen.tid from chosen))
      for update of j skip locked) f) l
  where l.bytes_before < p_bytes;
  -- A partition without further jobs goes; one that cannot run now waits; the others keep their turn,
  -- or with fair shares get a new one once theirs is finished.
  with job as materialized (
    select c.*, t.id is not null as taken
    from unnest(c_keys, c_ids, c_priorities, c_positions, c_blocked, c_ready, c_shares)
      with ordinality as c (key, id, priority, pos, blocked, ready_at, share, no)
    left join unnest(ids) as t (id) on t.id = c.id
  ), rest as (
    select distinct on (j.key) j.key, j.priority, j.pos, j.blocked, j.ready_at
    from job j where not j.taken order by j.key, j.no
  ), part as materialized (
    select u.key, r.priority, r.pos, r.blocked, r.ready_at, f.unfinished, u.place,
      (select p.ctid from {schema}.limits_partitions p
       where p.queue = s.queue and p.key = u.key) as tid
    from unnest(v_parts) with ordinality as u (key, place)
    left join rest r on r.key = u.key
    left join (
      select j.key, max(j.share) - count(*) filter (where j.taken) as unfinished
      from job j group by j.key) f on f.key = u.key
  ), stays as materialized (
    -- New turns in the order of the old ones.
    select o.*, case
      when o.blocked is null and o.ready_at is null
        and (o.priority <> v_lanes[o.place] or (v_fair is not null and o.unfinished = 0))
      then nextval('{schema}.limits_turns') end as new_turn
    from (select * from part a where a.pos is not null order by a.place) o
  ), done as (
    delete from {schema}.limits_partitions p
    where p.ctid = any (array(select d.tid from part d where d.pos is null))
  )
  update {schema}.limits_partitions p
  set after_priority = r.priority, after_pos = r.pos - 1, priority = r.priority,
    blocked = r.blocked, ready_at = case when r.blocked is null then r.ready_at end,
    turn = case
      when r.blocked is null and r.ready_at is null then coalesce(r.new_turn, p.turn) end,
    unfinished = case
      when v_fair is not null and r.new_turn is null and r.unfinished > 0 then r.unfinished end
  from stays r
  where p.key = r.key and p.ctid = any (array(select o.tid from stays o));
  -- Each lane starts at its first partition that keeps its turn, or behind those that were read.
  select coalesce(jsonb_object_agg(l.priority, l.turn), '{}') || ring ||
      coalesce(jsonb_object_agg(l.priority, l.turn) filter (where l.read), '{}')
  into ring
  from (
    select p.priority, min(p.turn) as turn, false as read
    from unnest(v_parts) as u (key)
    cross join lateral (
      select p.priority, p.turn from {schema}.limits_partitions p
      where p.queue = s.queue and p.key = u.key limit 1) p
    where p.turn is not null and not s.ring ? p.priority::text
    group by 1
    union all
    select u.priority, coalesce(min((
        select p.turn from {schema}.limits_partitions p
        where p.queue = s.queue and p.key = u.key and p.turn = u.turn)), max(u.turn) + 1), true
    from unnest(v_parts, v_lanes, v_turns) as u (key, priority, turn)
    group by 1) l;
end
$$
