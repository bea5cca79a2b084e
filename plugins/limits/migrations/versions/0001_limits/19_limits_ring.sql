-- Starts held jobs of up to p_most_parts partitions that have a turn, of priority p_lane: at most
-- p_room. If the turns are those of tenants with several partitions, it reads up to p_most_parts
-- tenants, and more partitions of each the higher p_read is, the number of the read. Returns the rows to
-- claim in order, with their partitions, their bytes, of which the last one may exceed p_bytes, the ring
-- behind them, and whether some were locked elsewhere; with p_locked it leaves those out, so that others
-- get their room, and a partition without others gets a new turn. The caller has locked the queue.
-- The joins of the lists are hash joins, whatever the caller has set: nested loops over 1,000 jobs
-- took 50 ms. Partitions are written by the ctid of the first read: nothing else writes them meanwhile.
-- Index: limits_partitions_ring, or limits_tenants_ring and limits_partitions_blocked; jobs_limits_held
-- from the known positions. Locks: rows of jobs, skipping locked ones. Safe to repeat.
create function {schema}.limits_ring(
  s {schema}.limits_queues, p_keys text[], p_running boolean[], p_now timestamptz, p_room int,
  p_most_parts int, p_read int, p_locked boolean, p_lane smallint, p_bytes bigint,
  out tids tid[], out ids uuid[], out keys text[], out bytes bigint, out ring jsonb, out locked boolean
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
  v_tenanted boolean := v_fair is not null and cardinality(s.bys) > 1;
  v_take int := least(p_room, (
    select min(r.most) from unnest(s.kinds, s.by_nos, s.maxima) as r (kind, by_no, most)
    where r.by_no > 0 and r.kind in ('concurrency', 'sequential')));
  v_names text[]; v_lanes smallint[]; v_turns bigint[]; v_unfinished int[]; v_shares int[];
  v_turns_each int; v_parts text[]; v_part_turns bigint[]; v_takes int[]; v_tenants int[];
  v_part_tids tid[]; v_after_priorities smallint[]; v_after_positions bigint[];
  v_looks int := 0; v_more int := 0; v_fit boolean[]; v_free uuid[]; v_unlocked tid[];
  v_fair_by int := array_position(s.bys, v_fair ->> 'by');
  -- Whether the jobs of a partition may have different keys.
  v_sequenced boolean := 'sequential' = any (s.kinds) and cardinality(s.bys) > 1;
  c_places int[]; c_keys text[]; c_tids tid[]; c_ids uuid[]; c_priorities smallint[];
  c_positions bigint[]; c_bytes int[]; c_takes boolean[]; c_shares int[]; c_oks boolean[];
  c_blocked text[]; c_ready timestamptz[];
begin
  if v_tenanted then
    s.ring := s.ring || jsonb_build_object('0', {schema}.limits_line_up(s, v_fair_by));
  end if;
  select coalesce(array_agg(r.name order by r.priority desc, r.turn), '{}'),
    array_agg(r.priority order by r.priority desc, r.turn),
    array_agg(r.turn order by r.priority desc, r.turn),
    array_agg(r.unfinished order by r.priority desc, r.turn),
    array_agg(r.tid order by r.priority desc, r.turn),
    array_agg(r.after_priority order by r.priority desc, r.turn),
    array_agg(r.after_pos order by r.priority desc, r.turn)
  into v_names, v_lanes, v_turns, v_unfinished, v_part_tids, v_after_priorities, v_after_positions
  from (
    select h.*
    from (select l.key::smallint as priority, l.value::bigint as turn
          from jsonb_each_text(s.ring) l where l.key::smallint = p_lane) l
    cross join lateral (
      select * from (
        select p.key as name, p.priority, p.turn, p.unfinished, p.ctid as tid, p.after_priority,
          p.after_pos
        from {schema}.limits_partitions p
        where not v_tenanted and p.queue = s.queue and p.priority = l.priority and p.turn >= l.turn
        order by p.turn limit p_most_parts) part
      union all
      select * from (
        select t.tenant, 0::smallint, t.turn, t.unfinished, null::tid, null::smallint, null::bigint
        from {schema}.limits_tenants t
        where v_tenanted and t.queue = s.queue and t.turn >= l.turn
        order by t.turn limit p_most_parts) tenant) h
    order by h.priority desc, h.turn limit p_most_parts) r;
  ring := s.ring;
  if v_names = '{}' then
    ring := s.ring - p_lane::text;
    return;
  end if;
  -- Enough to fill the room; another read takes the rest of a partition with more.
  if not v_tenanted then
    v_take := least(v_take, greatest(1, 4 * p_room / cardinality(v_names)));
  end if;
  -- A turn starts two jobs: the ring costs half of what it does with one. Several turns at once, if
  -- fewer tenants than jobs can start; turns that have begun end first, as they get no more.
  v_turns_each := case when array_remove(v_unfinished, null) <> '{}' then 2
    else greatest(2, p_room / (
      select sum(coalesce((v_fair -> 'weights' ->> u.name)::int, 1))
      from unnest(v_names) as u (name))) end;
  v_shares := array(
    select case when v_fair is null then v_take
      else coalesce(u.unfinished, v_turns_each * coalesce((v_fair -> 'weights' ->> u.name)::int, 1))
      end
    from unnest(v_names, v_unfinished) with ordinality as u (name, unfinished, no) order by u.no);
  v_parts := v_names; v_part_turns := v_turns; v_takes := v_shares;
  if v_tenanted then
    -- If the last read started nothing, all that it read had to wait: this one looks at more.
    if p_most_parts > p_room then
      v_looks := p_most_parts / cardinality(v_names);
    end if;
    select coalesce(array_agg(r.key order by r.no, r.last_turn), '{}'),
      array_agg(r.last_turn order by r.no, r.last_turn), array_agg(r.no order by r.no, r.last_turn),
      array_agg(ceil(r.share::float8 / r.parts) order by r.no, r.last_turn),
      array_agg(r.tid order by r.no, r.last_turn),
      array_agg(r.after_priority order by r.no, r.last_turn),
      array_agg(r.after_pos order by r.no, r.last_turn)
    into v_parts, v_part_turns, v_tenants, v_takes, v_part_tids, v_after_priorities, v_after_positions
    from (
      select p.*, u.no, u.share, count(*) over (partition by u.no) as parts
      from unnest(v_names, v_shares) with ordinality as u (name, share, no)
      cross join lateral (
        select p.key, p.last_turn, p.ctid as tid, p.after_priority, p.after_pos
        from {schema}.limits_partitions p
        where p.queue = s.queue and p.blocked = '0:' || u.name
        order by p.last_turn
        -- The first read takes as few as can have the jobs of the share.
        limit greatest(v_looks, least(u.share, ceil(u.share::float8 / v_take) * 4 ^ (p_read - 1)))::int
      ) p) r;
  end if;
  -- The first jobs of each partition, and one more, which shows whether there are others. Behind locked
  -- ones, some more.
  if p_locked then
    v_more := 1000 / greatest(cardinality(v_parts), 1);
  end if;
  select array_agg(c.place order by c.no),
    coalesce(array_agg(coalesce(c.key, c.part) order by c.no), '{}'),
    array_agg(c.tid order by c.no),
    array_agg(c.id order by c.no), array_agg(c.priority order by c.no),
    array_agg(c.pos order by c.no), array_agg(c.bytes order by c.no),
    -- Jobs of a lower priority wait for the turn that their partition gets in that lane.
    array_agg(case when v_fair is null then c.priority >= c.lane else c.nth <= c.take end
      order by c.no),
    array_agg(c.take order by c.no)
  into c_places, c_keys, c_tids, c_ids, c_priorities, c_positions, c_bytes, c_takes, c_shares
  from (
    -- Several turns at once go round one by one, those with the most jobs left first, since the bytes
    -- of a claim may end them.
    select l.*, row_number() over (
      order by case when v_fair is not null and not v_tenanted
        then (l.nth - l.take) / (2 * coalesce((v_fair -> 'weights' ->> l.part)::int, 1)) end,
      l.place, l.nth) as no
    from (
    select r.part, r.place, r.lane, r.take, j.*,
      row_number() over (partition by r.place order by j.priority desc, j.pos) as nth
    from unnest(v_parts, v_takes, case when v_fair is null then v_lanes end, v_after_priorities,
        v_after_positions)
      with ordinality as r (part, take, lane, after_priority, after_pos, place)
    cross join lateral (
      select * from (
        select j.ctid as tid, j.id, j.priority, j.pos, coalesce(pg_column_size(j.arguments), 0)
            + coalesce(pg_column_size(j.meta), 0) as bytes, case when v_sequenced
          then {schema}.limits_key(s.bys, j.func, j.arguments, j.meta) end as key
        from {schema}.jobs j
        where j.state = 3 and j.meta ? 'limits' and not j.meta ? 'hold' and j.queue = s.queue
          and j.meta #>> '{limits,partition}' = r.part
          and j.priority = r.after_priority and j.pos > r.after_pos
          and j.id <> all (s.strays)
          and not {schema}.expired(j.expires_at, j.attempt, j.crashes)
        order by j.priority desc, j.pos limit least(r.take, p_room) + 1 + v_more) same
      union all
      select * from (
        select j.ctid, j.id, j.priority, j.pos, coalesce(pg_column_size(j.arguments), 0)
            + coalesce(pg_column_size(j.meta), 0), case when v_sequenced
          then {schema}.limits_key(s.bys, j.func, j.arguments, j.meta) end
        from {schema}.jobs j
        where j.state = 3 and j.meta ? 'limits' and not j.meta ? 'hold' and j.queue = s.queue
          and j.meta #>> '{limits,partition}' = r.part and j.priority < r.after_priority
          and j.id <> all (s.strays)
          and not {schema}.expired(j.expires_at, j.attempt, j.crashes)
        order by j.priority desc, j.pos limit least(r.take, p_room) + 1 + v_more) lower
      limit least(r.take, p_room) + 1 + v_more) j) l) c;
  if p_locked then
    v_free := array(
      select j.id from {schema}.jobs j where j.state = 3 and j.ctid = any (c_tids)
      for update skip locked);
    c_takes := array(
      select f.free and case
        when v_fair is null then f.take
        else count(*) filter (where f.free) over (partition by f.place order by f.no) <= f.share end
        -- No job overtakes another one of its sequence.
        and ('sequential' <> all (s.kinds) or bool_and(f.free) over (partition by f.place order by f.no))
      from (
        select u.*, u.id in (select unnest(v_free)) as free
        from unnest(c_places, c_ids, c_takes, c_shares)
          with ordinality as u (place, id, take, share, no)) f
      order by f.no);
  end if;
  if v_tenanted then
    -- The jobs of a tenant from each of its partitions in turn.
    c_takes := array(
      select c.take and count(*) filter (where c.take)
        over (partition by c.tenant order by c.nth, c.no) <= greatest(v_looks, v_shares[c.tenant])
      from (
        select c.no, c.take, v_tenants[c.place] as tenant,
          row_number() over (partition by c.place order by c.no) as nth
        from unnest(c_places, c_takes) with ordinality as c (place, take, no)) c
      order by c.no);
  end if;
  select * into c_oks, c_blocked, c_ready
  from {schema}.limits_judge(s, p_keys, p_running, p_now, c_keys, null, array(
    select not c.take
    from unnest(c_takes) with ordinality as c (take, no) order by c.no));
  v_fit := c_oks;
  if v_tenanted then
    c_oks := array(
      select c.ok and count(*) filter (where c.ok)
        over (partition by v_tenants[c.place] order by c.no) <= v_shares[v_tenants[c.place]]
      from unnest(c_places, c_oks) with ordinality as c (place, ok, no)
      order by c.no);
  end if;
  -- Jobs that another transaction has locked, for example a cancellation, stay held.
  v_unlocked := array(
    select j.ctid from {schema}.jobs j
    where j.state = 3 and j.ctid = any (array(
      select f.tid from unnest(c_tids, c_oks) with ordinality as f (tid, ok, no)
      where f.ok order by f.no limit p_room))
    for update skip locked);
  select coalesce(array_agg(l.tid order by l.no), '{}'), coalesce(array_agg(l.id order by l.no), '{}'),
    coalesce(array_agg(l.key order by l.no), '{}'), coalesce(sum(l.bytes), 0)
  into tids, ids, keys, bytes
  from (
    select c.*, sum(c.bytes) over (order by c.no) - c.bytes as bytes_before
    from unnest(c_tids, c_ids, c_keys, c_bytes) with ordinality as c (tid, id, key, bytes, no)
    join unnest(v_unlocked) as u (tid) on u.tid = c.tid) l
  where l.bytes_before < p_bytes;
  locked := bytes < p_bytes and cardinality(ids) < least(
    p_room, cardinality(array_positions(c_oks, true)));
  if cardinality(s.bys) > 1 then
    c_blocked := {schema}.limits_unblock(s, array(
      select c.key from unnest(c_keys, c_ids, v_fit) as c (key, id, ok)
      where c.ok and c.id not in (select unnest(ids))), c_blocked);
  end if;
  -- A partition without further jobs goes; one that cannot run now waits; the others keep their turn,
  -- or with fair shares get a new one once theirs is finished, or line up again behind their tenant.
  with job as materialized (
    select c.*, t.id is not null as taken
    from unnest(c_places, c_keys, c_ids, c_priorities, c_positions, c_blocked, c_ready, c_shares,
        c_takes)
      with ordinality as c (place, head, id, priority, pos, blocked, ready_at, share, takes, no)
    left join unnest(ids) as t (id) on t.id = c.id
  ), part as materialized (
    -- The next job of a sequence may be of another tenant, behind which its partition lines up later.
    select u.key, u.tid, nullif(r.head, u.key) as head, r.priority, r.pos, r.ready_at, f.unfinished,
      f.started, f.stuck, u.place,
      case when v_tenanted and r.blocked is null and r.ready_at is null and v_names[v_tenants[u.place]]
          = {schema}.limits_group(r.head, v_fair_by, cardinality(s.bys))
        then '0:' || v_names[v_tenants[u.place]] else r.blocked end as blocked
    from unnest(v_parts, v_part_tids) with ordinality as u (key, tid, place)
    left join (
      select j.place, min(j.no) filter (where not j.taken) as next,
        max(j.share) - count(*) filter (where j.taken) as unfinished,
        bool_or(j.taken) as started, p_locked and not bool_or(j.takes) as stuck
      from job j group by j.place) f on f.place = u.place
    left join job r on r.no = f.next
  ), stays as materialized (
    -- New turns in the order of the old ones.
    select o.*, case
      when o.blocked is null and o.ready_at is null
        and case when o.stuck then true when v_fair is null then o.priority <> v_lanes[o.place]
          else v_tenanted or o.unfinished = 0 end
      then nextval('{schema}.limits_turns') end as new_turn,
      case when o.blocked is not null or o.ready_at is not null then case
        when o.started then nextval('{schema}.limits_turns') else v_part_turns[o.place] end
      end as last_turn
    from (select * from part a where a.pos is not null order by a.place) o
  ), done as (
    delete from {schema}.limits_partitions p
    where p.ctid = any (array(select d.tid from part d where d.pos is null))
  ), kept as (
    update {schema}.limits_partitions p
    set head = r.head, after_priority = r.priority, after_pos = r.pos - 1,
      priority = case when v_fair is null then r.priority else 0 end,
      blocked = r.blocked, ready_at = case when r.blocked is null then r.ready_at end,
      turn = case
        when r.blocked is null and r.ready_at is null then coalesce(r.new_turn, p.turn) end,
      last_turn = r.last_turn,
      unfinished = case
        when v_fair is not null and not v_tenanted and r.new_turn is null and r.unfinished > 0
        then r.unfinished end
    from stays r
    where p.key = r.key and p.ctid = any (array(select o.tid from stays o))
    returning p.key, p.priority, p.turn)
  -- Each lane starts at its first partition that keeps its turn, or behind those that were read.
  select coalesce(jsonb_object_agg(l.priority, l.turn), '{}') || ring ||
      coalesce(jsonb_object_agg(l.priority, l.turn) filter (where l.read), '{}')
  into ring
  from (
    select k.priority, min(k.turn) as turn, false as read from kept k
    where k.turn is not null and not s.ring ? k.priority::text
    group by 1
    union all
    select u.priority, coalesce(min(k.turn), max(u.turn) + 1), true
    from unnest(v_parts, v_lanes, v_turns) as u (key, priority, turn)
    left join kept k on k.key = u.key and k.turn = u.turn
    where not v_tenanted
    group by 1) l;
  if v_tenanted then
    ring := ring || jsonb_build_object('0', {schema}.limits_pass(
      s.queue, v_names, v_turns, v_shares, array(
        select case when p_locked and not bool_or(c.takes) then -1 else count(t.id) end
        from generate_series(1, cardinality(v_names)) as n (no)
        left join unnest(c_places, c_ids, c_takes) as c (place, id, takes)
          on v_tenants[c.place] = n.no
        left join unnest(ids) as t (id) on t.id = c.id
        group by n.no order by n.no)::int[]));
  end if;
end
$$
