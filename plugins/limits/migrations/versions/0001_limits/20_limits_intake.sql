-- Reads pending jobs of a queue, those of a priority over p_above, in order: up to p_room of them may
-- start, and are returned as rows to claim with their partitions. Others are held, if their partition
-- may not run now or has held jobs; with fair shares all of them, unless all that wait may start. Jobs
-- of a sequence stay pending behind one that another transaction locks. Returns how many were read, the
-- bytes of those that may start, of which the last one may exceed p_bytes, and the changed hints and
-- ring. The caller has locked the queue.
-- A job that holds its sequence is never held: if it has to wait for another rule, the hints pass it,
-- so that the next read finds what is behind it. stops: the hints before the first such job.
-- p_block: the replay of a job that blocks its sequence takes its place.
-- p_front: priorities without a position in s.before are read from their front.
-- p_wide: looks at many more jobs, as the last read found only such behind locked ones.
-- Index: jobs_pending, the primary keys. Locks: rows of jobs by priority and position, skipping locked
-- ones. Safe to repeat.
create function {schema}.limits_intake(
  s {schema}.limits_queues, p_ids uuid[], p_keys text[], p_running boolean[], p_now timestamptz,
  p_room int, p_above smallint, p_front boolean, p_wide boolean, p_block boolean, p_bytes bigint,
  out tids tid[], out ids uuid[], out keys text[], out bytes bigint, out seen int, out hints jsonb,
  out stops jsonb, out ring jsonb
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = on
set jit = off
as $$
declare
  -- A small room is read beyond, since most of what comes first may have to wait; with a larger one
  -- that costs more than another read would.
  v_window int := case
    when p_wide then 5000
    when 'fair' = any (s.kinds) then 1000
    when s.bys = '{}' or p_room >= 50 then p_room else 200 end;
  -- Of the only key, if it is in the arguments: values of up to 200 characters are their own partition,
  -- as limits_key has it, whose call for each job costs 1.5 µs.
  v_path text[] := case when cardinality(s.bys) = 1 and s.bys[1] not in ('func', 'key')
    then string_to_array(s.bys[1], '.') end;
  v_hold boolean; v_to int;
  v_lanes int[] := '{}'; v_hints bigint[] := '{}';
  v_moved uuid[]; v_owners boolean[]; v_waits boolean[]; v_behind boolean[];
  v_sequence int := s.by_nos[array_position(s.kinds, 'sequential')];
  c_parts text[]; v_unfit text[];
  k_groups text[]; k_priorities smallint[]; k_positions bigint[];
  c_tids tid[]; c_ids uuid[]; c_replays text[]; c_keys text[]; c_priorities smallint[]; c_positions bigint[];
  c_bytes bigint[]; c_oks boolean[]; c_blocked text[]; c_ready timestamptz[];
  h_tids tid[]; h_parts text[]; h_keys text[]; h_blocked text[]; h_ready timestamptz[];
begin
  select coalesce(array_agg(l.key::int order by l.key::int desc), '{}'),
    coalesce(array_agg(l.value::bigint order by l.key::int desc), '{}')
  into v_lanes, v_hints
  from jsonb_each_text(s.before) l;
  select coalesce(array_agg(x.tid), '{}'), array_agg(x.id), array_agg(x.key),
    array_agg(x.priority), array_agg(x.pos), array_agg(x.bytes),
    array_agg(x.replay_of)
  into c_tids, c_ids, c_keys, c_priorities, c_positions, c_bytes, c_replays
  from (
    select l.tid, l.id, case
        when s.bys = '{}' then '[]'
        when char_length(l.given) <= 200 then l.given
        else {schema}.limits_key(s.bys, l.func, l.arguments, l.meta) end as key,
      l.priority, l.pos, coalesce(pg_column_size(l.arguments), 0)
        + coalesce(pg_column_size(l.meta), 0) as bytes,
      case when p_block then l.meta #>> '{dead_letters,replay_of}' end as replay_of
    from unnest(32768 || v_lanes, v_lanes || -32769, v_hints) as lane (above, priority, hint)
    cross join lateral (
      select * from (
        select j.ctid as tid, j.id, j.func, j.arguments, j.meta, j.priority, j.pos,
          j.arguments #>> v_path as given
        from {schema}.jobs j
        where j.state = 0 and j.queue = s.queue and lane.above > lane.priority + 1
          and j.priority < lane.above and j.priority > lane.priority and j.priority > p_above
          and not {schema}.expired(j.expires_at, j.attempt, j.crashes)
        order by j.priority desc, j.pos limit v_window for update skip locked) unknown
      union all
      select * from (
        select j.ctid, j.id, j.func, j.arguments, j.meta, j.priority, j.pos, j.arguments #>> v_path
        from {schema}.jobs j
        where j.state = 0 and j.queue = s.queue and j.priority = lane.priority
          and j.pos > lane.hint and j.priority > p_above
          and not {schema}.expired(j.expires_at, j.attempt, j.crashes)
        order by j.pos limit v_window for update skip locked) known) l
    limit v_window) x;
  -- The jobs of a sequence are one partition.
  c_parts := case
    when v_sequence is null or cardinality(s.bys) = 1 then c_keys
    else array(
      select {schema}.limits_group(u.key, v_sequence, cardinality(s.bys))
      from unnest(c_keys) with ordinality as u (key, no) order by u.no) end;
  seen := cardinality(c_tids);
  bytes := 0; tids := '{}'; ids := '{}'; keys := '{}'; hints := s.hints; ring := s.ring;
  if seen = 0 then
    return;
  end if;
  -- Behind a full window of a read from the front there may be more jobs before the old hints.
  v_to := case when p_front and seen = v_window then c_priorities[seen] end;
  -- Without partitions all that there is room for may start.
  if s.bys = '{}' then
    with job as materialized (
      select c.*, sum(c.bytes) over (order by c.no rows unbounded preceding) - c.bytes < p_bytes
        as starts
      from unnest(c_tids, c_ids, c_keys, c_priorities, c_positions, c_bytes) with ordinality
        as c (tid, id, key, priority, pos, bytes, no))
    select array_agg(j.tid) filter (where j.starts), array_agg(j.id) filter (where j.starts),
      array_agg(j.key) filter (where j.starts), sum(j.bytes) filter (where j.starts),
      {schema}.limits_hints(s.hints, (
        select jsonb_object_agg(l.priority, l.pos) from (
          select g.priority,
            coalesce(min(g.pos) filter (where not g.starts) - 1, max(g.pos)) as pos
          from job g group by g.priority) l), v_to)
    into tids, ids, keys, bytes, hints
    from job j;
    return;
  end if;
  v_hold := 'fair' = any (s.kinds) and (s.ring <> '{}' or seen > p_room);
  -- All of them wait: nothing is to be judged.
  if v_hold and not 'sequential' = any (s.kinds) then
    hints := {schema}.limits_hints(s.hints, (
      select jsonb_object_agg(l.priority, l.pos) from (
        select u.priority, max(u.pos) as pos
        from unnest(c_priorities, c_positions) as u (priority, pos) group by 1) l), v_to);
    ring := {schema}.limits_hold(s.queue, s.ring, c_tids, c_parts, c_keys,
      array_fill(null::text, array[seen]), array_fill(null::timestamptz, array[seen]), true);
    return;
  end if;
  v_behind := array_fill(false, array[seen]);
  if 'sequential' = any (s.kinds) then
    with skipped as materialized (
      select l.tid
      from unnest(32768 || v_lanes, v_lanes || -32769, v_hints) as lane (above, priority, hint)
      cross join lateral (
        select j.ctid as tid from {schema}.jobs j
        where j.state = 0 and j.queue = s.queue and lane.above > lane.priority + 1
          and j.priority < lane.above and j.priority > lane.priority
          and j.priority > c_priorities[seen]
          and not {schema}.expired(j.expires_at, j.attempt, j.crashes)
        union all
        select j.ctid from {schema}.jobs j
        where j.state = 0 and j.queue = s.queue and j.priority = c_priorities[seen]
          and j.priority < lane.above and j.priority > lane.priority and j.pos < c_positions[seen]
          and not {schema}.expired(j.expires_at, j.attempt, j.crashes)
        union all
        select j.ctid from {schema}.jobs j
        where j.state = 0 and j.queue = s.queue and j.priority = lane.priority
          and j.priority >= c_priorities[seen] and j.pos > lane.hint and j.pos < case
            when lane.priority = c_priorities[seen] then c_positions[seen]
            else 9223372036854775807 end
          and not {schema}.expired(j.expires_at, j.attempt, j.crashes)) l
      except select u.tid from unnest(c_tids) as u (tid))
    select array_agg(k.grp), array_agg(k.priority), array_agg(k.pos)
    into k_groups, k_priorities, k_positions
    from (
      select {schema}.limits_group({schema}.limits_key(s.bys, j.func, j.arguments, j.meta),
          v_sequence, cardinality(s.bys)) as grp, j.priority, j.pos
      from {schema}.jobs j where j.ctid = any (array(select skipped.tid from skipped))) k;
  end if;
  if k_groups is not null then
    v_behind := array(
      select coalesce((c.priority, -c.pos) < (k.priority, -k.pos), false)
      from unnest(c_keys, c_priorities, c_positions) with ordinality as c (key, priority, pos, no)
      left join (
        select distinct on (u.grp) u.grp, u.priority, u.pos
        from unnest(k_groups, k_priorities, k_positions) as u (grp, priority, pos)
        order by u.grp, u.priority desc, u.pos) k
        on k.grp = {schema}.limits_group(c.key, v_sequence, cardinality(s.bys))
      order by c.no);
  end if;
  -- Hashed: comparing 300 jobs with a list of 600 took 70 ms.
  v_owners := case when 'sequential' = any (s.kinds) then array(
    select c.id in (select unnest(p_ids))
      or c.replay_of is not null and c.replay_of in (select unnest(p_ids)::text)
    from unnest(c_ids, c_replays) with ordinality as c (id, replay_of, no) order by c.no)
    else array_fill(false, array[seen]) end;
  -- A job whose arguments were replaced may be of another sequence now: it frees the slot of the old
  -- one, as does a job that is gone.
  if true = any (v_owners) then
    v_moved := array(
      select c.id from unnest(c_ids, c_replays, c_keys, v_owners) as c (id, replay_of, key, owner)
      cross join lateral (values (c.id::text), (c.replay_of)) as o (id)
      join unnest(p_ids, p_keys) as u (id, key) on u.id::text = o.id
      where c.owner and {schema}.limits_group(u.key, v_sequence, cardinality(s.bys))
        <> {schema}.limits_group(c.key, v_sequence, cardinality(s.bys)));
    for v_place in 1 .. cardinality(v_moved) loop
      v_owners[array_position(c_ids, v_moved[v_place])] := false;
      update {schema}.limits_slots l
      set ids = array_replace(l.ids, v_moved[v_place], '00000000-0000-0000-0000-000000000000')
      where l.queue = s.queue and v_moved[v_place] = any (l.ids);
    end loop;
  end if;
  -- Whether held jobs of the partition are ahead of it.
  v_waits := array(
    select s.bys <> '{}' and not c.owner and (v_hold or c.behind or (
      select true from {schema}.limits_partitions p
      where p.queue = s.queue and p.key = c.part) is true)
    from unnest(c_parts, v_owners, v_behind) with ordinality as c (part, owner, behind, no)
    order by c.no);
  select * into c_oks, c_blocked, c_ready
  from {schema}.limits_judge(s, p_keys, p_running, p_now, c_keys, v_owners, v_waits);
  with job as materialized (
    select c.*, sum(c.bytes) filter (where c.ok) over (order by c.no rows unbounded preceding)
        - c.bytes as bytes_before,
      count(*) filter (where c.ok) over (order by c.no rows unbounded preceding) as nth
    from unnest(c_tids, c_ids, c_keys, c_parts, c_priorities, c_positions, c_bytes, c_oks, c_blocked,
        c_ready, v_waits, v_owners, v_behind)
      with ordinality as c (tid, id, key, part, priority, pos, bytes, ok, blocked, ready_at, waits,
        owner, behind, no)
  ), chosen as materialized (
    select j.*, coalesce(j.ok, false) and j.nth <= p_room and j.bytes_before < p_bytes as starts,
      s.bys <> '{}' and not j.owner and not j.behind as holdable, j.waits or j.ok = false as late
    from job j
  ), fate as materialized (
    -- A job without room stays pending, unless later ones of its partition are held: they would
    -- start before it.
    select c.*, c.holdable and not c.starts
      and bool_or(c.holdable and c.late) over (partition by c.part collate "C") as held
    from chosen c)
  select coalesce(array_agg(f.tid order by f.no) filter (where f.starts), '{}'),
    coalesce(array_agg(f.id order by f.no) filter (where f.starts), '{}'),
    coalesce(array_agg(f.key order by f.no) filter (where f.starts), '{}'),
    array_agg(f.tid order by f.no) filter (where f.held),
    array_agg(f.part order by f.no) filter (where f.held),
    array_agg(f.key order by f.no) filter (where f.held),
    array_agg(f.blocked order by f.no) filter (where f.held),
    array_agg(f.ready_at order by f.no) filter (where f.held),
    (select jsonb_object_agg(l.priority, l.pos) from (
      select g.priority, coalesce(min(g.pos) filter (
        where not g.starts and not g.held and g.ok is not false) - 1, max(g.pos)) as pos
      from fate g group by g.priority) l),
    (select jsonb_object_agg(l.priority, l.pos) from (
      select g.priority, min(g.pos) - 1 as pos
      from fate g where not g.held and g.ok = false group by g.priority) l),
    coalesce(sum(f.bytes) filter (where f.starts), 0),
    coalesce(array_agg(f.key) filter (where f.ok and not f.starts), '{}')
  into tids, ids, keys, h_tids, h_parts, h_keys, h_blocked, h_ready, hints, stops, bytes, v_unfit
  from fate f;
  hints := {schema}.limits_hints(s.hints, hints, v_to);
  if k_groups is not null then
    hints := hints || coalesce((
      select jsonb_object_agg(k.priority, k.pos - 1)
      from (select u.priority, min(u.pos) as pos
            from unnest(k_priorities, k_positions) as u (priority, pos) group by 1) k
      where (hints ->> k.priority::text)::bigint >= k.pos), '{}');
  end if;
  if h_tids is not null then
    ring := {schema}.limits_hold(s.queue, s.ring, h_tids, h_parts, h_keys,
      {schema}.limits_unblock(s, v_unfit, h_blocked), h_ready,
      'fair' = any (s.kinds));
  end if;
end
$$
