-- Claims up to p_limit jobs of a queue with rules under one lease, as the function claim of the core
-- does of a queue without. Claims of one queue go one after the other.
-- Index: see the functions that it calls. Locks: the rows of limits_queues and queues, then rows of
-- jobs, skipping locked ones. Safe to repeat with another lease.
create function {schema}.limits_claim(p_worker uuid, p_lease uuid, p_queue text, p_limit int)
returns table (
  id uuid, priority smallint, pos bigint, func text, arguments jsonb,
  attempt int, max_attempts int, crashes smallint, meta text, limits text, waited_s float8
)
language plpgsql rows 200
set search_path = pg_catalog, pg_temp
{pinned_plan}
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  s {schema}.limits_queues;
  v_rules jsonb; v_paused boolean; v_now timestamptz; v_began timestamptz; v_room int; v_front boolean;
  v_live record; v_part record; v_lanes jsonb;
  v_ids uuid[] := '{}'; v_keys text[] := '{}'; v_running boolean[] := '{}'; v_old int := 0;
  v_freed text[] := '{}';
  v_count int; v_slots boolean; v_block boolean; v_most_parts int; v_pass int := 0; v_read int := 1; v_idle boolean;
  v_locked boolean := false; v_wide boolean := false;
  v_ring smallint; v_last bigint; v_done int := 32768; v_to smallint; v_above smallint := 32767;
  v_front_read boolean := false; v_whole_front boolean := false;
  v_hints jsonb; v_before jsonb; v_stops jsonb[]; v_bytes bigint := 4194304;
begin
  select * into s from {schema}.limits_queues q where q.queue = p_queue for update;
  -- A pause waits for claims under way: they take no job that is pushed after it. It does not wait for
  -- those that wait for the row above. If another transaction keeps this row locked, this fails soon:
  -- claims of other queues wait for this one.
  perform set_config('lock_timeout', '100ms', true);
  select q.rules, q.paused_at is not null and (q.resume_at is null or q.resume_at > clock_timestamp())
  into v_rules, v_paused
  from {schema}.queues q where q.name = p_queue for share;
  perform set_config('lock_timeout', '2s', true);
  if v_paused or not exists (select from {schema}.workers w where w.id = p_worker) then
    return;
  end if;
  if s.rules is distinct from v_rules then
    if not {schema}.limits_configure(p_queue, v_rules) and v_rules is not null then
      return;
    end if;
    s := null;
    select * into s from {schema}.limits_queues q
    where q.queue = p_queue and v_rules is not null;
  end if;
  if s.queue is null then
    return query select * from {schema}.claim(
      p_worker, p_lease, p_queue, p_limit, 4194304::bigint, '{}', '{}');
    return;
  end if;
  v_began := clock_timestamp();
  -- The clock of the server went back: what has been stored goes back with it.
  if s.clock > v_began + interval '1 second' then
    update {schema}.limits_buckets b
    set at = least(b.at, v_began), paused_until = b.paused_until - (s.clock - v_began)
    where b.queue = p_queue;
    update {schema}.limits_partitions p set ready_at = p.ready_at - (s.clock - v_began)
    where p.queue = p_queue and p.ready_at is not null;
    s.clock := v_began; s.front_at := '-infinity'; s.marked_at := '-infinity';
  end if;
  v_now := greatest(v_began, s.clock);
  s.clock := v_now;
  v_hints := s.hints; v_before := s.before;
  v_block := s.rules @> '[{"on_failure": "block"}]';
  v_slots := s.kinds && '{concurrency,sequential}';
  if not v_slots then
    v_count := 0;
  elsif s.bys = '{}' then
    v_count := {schema}.limits_running(p_queue, (
      select min(r.most) - p_limit from unnest(s.kinds, s.maxima) as r (kind, most)
      where r.kind = 'concurrency'));
  else
    select * into v_live
    from {schema}.limits_live(p_queue, 'sequential' = any (s.kinds), v_block);
    v_ids := v_live.ids; v_keys := v_live.keys; v_running := v_live.running;
    v_old := cardinality(v_ids);
    v_freed := v_live.freed;
    v_count := cardinality(array_positions(v_running, true));
  end if;
  if s.bys <> '{}' then
    -- The index that serves it gives them in the order of their last turns.
    with ready as (
      update {schema}.limits_partitions p
      set turn = nextval('{schema}.limits_turns'), blocked = null, ready_at = null
      where p.queue = p_queue and (
        p.blocked = any (array(
          select distinct r.no || ':' || {schema}.limits_group(f.key, r.by_no, cardinality(s.bys))
          from unnest(v_freed) as f (key)
          cross join unnest(s.kinds, s.by_nos) with ordinality as r (kind, by_no, no)
          where r.kind in ('concurrency', 'sequential')
          -- A job that waits for another attempt keeps its sequence, but no slot of another rule.
          union
          select r.no || ':' || g.grp
          from unnest(s.kinds, s.by_nos, s.maxima) with ordinality as r (kind, by_no, most, no)
          cross join lateral (
            select {schema}.limits_group(u.key, r.by_no, cardinality(s.bys)) as grp
            from unnest(v_keys, v_running) as u (key, running)
            group by 1 having not bool_and(u.running)
              and count(*) filter (where u.running) < r.most) g
          where r.kind = 'concurrency' and r.by_no > 0 and false = any (v_running))))
      returning p.priority, p.turn
    ), due as (
      update {schema}.limits_partitions p
      set turn = w.turn, ready_at = null
      from (
        select d.key, nextval('{schema}.limits_turns') as turn from (
          select d.key from {schema}.limits_partitions d
          where d.queue = p_queue and d.ready_at <= v_now
          order by d.ready_at, d.last_turn limit p_limit) d) w
      where p.queue = p_queue and p.key = w.key
      returning p.priority, p.turn)
    select jsonb_object_agg(r.priority, r.turn) into v_lanes
    from (
      select u.priority, min(u.turn) as turn
      from (select * from ready union all select * from due) u group by 1) r;
    s.ring := coalesce(v_lanes, '{}') || s.ring;
    v_last := nextval('{schema}.limits_turns');
  end if;
  v_room := least(p_limit, 1000, {schema}.limits_room(s, v_count, v_now));
  v_front := v_now >= s.front_at;
  if v_front then
    s.before := '{}';
  end if;
  -- Fair shares start two jobs of each partition, the first of which may have one left of its turn; the
  -- second read of the ring takes as many partitions as there is room for, as their jobs may be few.
  -- After a read that started nothing, the next one takes four times as many: all of them may wait.
  v_most_parts := case when 'fair' = any (s.kinds) then v_room / 2 + 1 else v_room end;
  -- By priority; of the same one, held jobs first. With fair shares, one read of what is pending adds
  -- to the ring, which then decides.
  loop
    v_pass := v_pass + 1;
    exit when v_pass > 60 or v_room <= 0 or v_bytes <= 0;
    v_ring := (
      select max(l.key::smallint) from jsonb_object_keys(s.ring) as l (key) where l.key::int < v_done);
    exit when v_ring is null and v_above = -32768;
    if v_above > coalesce(v_ring, -32768) then
      v_to := case when 'fair' = any (s.kinds) then -32768 else coalesce(v_ring, -32768) end;
      select * into v_part from {schema}.limits_intake(
        s, v_ids, v_keys, v_running, v_now, v_room, v_to, v_front, v_wide, v_block, v_bytes);
      v_idle := v_part.hints = s.hints and v_part.ring = s.ring and v_part.ids = '{}';
      s.hints := v_part.hints; s.ring := v_part.ring; s.before := s.hints;
      v_stops := v_stops || v_part.stops;
      -- A read above the ring leaves the front below it to the next one.
      v_front_read := v_front_read or v_front;
      v_whole_front := v_whole_front or (v_front and v_to = -32768);
      v_front := v_front and v_to > -32768;
      if v_front then
        s.before := (select coalesce(jsonb_object_agg(l.key, l.value), '{}')
                     from jsonb_each(s.hints) l where l.key::int > v_to);
      end if;
      -- Another read would find the same jobs: read once more, with a larger window.
      if v_part.seen < v_room or 'fair' = any (s.kinds) or v_idle and v_wide then
        v_above := v_to;
      end if;
      v_wide := v_idle;
    else
      select * into v_part from {schema}.limits_ring(
        s, v_keys, v_running, v_now, v_room, v_most_parts, v_read, v_locked, v_ring, v_bytes);
      s.ring := v_part.ring;
      -- All that are left of this lane are locked elsewhere: they do not hide lower ones.
      if v_locked and v_part.ids = '{}' and (s.ring ->> v_ring::text)::bigint > v_last then
        v_done := v_ring; v_pass := 0;
      end if;
      v_read := v_read + 1; v_locked := v_part.locked is true;
      v_most_parts := case
        when cardinality(v_part.ids) > 0 then v_room - cardinality(v_part.ids)
        else least(1000, 4 * v_most_parts) end;
    end if;
    if cardinality(v_part.tids) > 0 then
      return query
      update {schema}.jobs j
      set state = 1, attempt = least(j.attempt, 2147483646) + 1, lease = p_lease,
        worker_id = p_worker, claimed_at = v_now,
        unique_key = case when j.unique_until_claim then null else j.unique_key end,
        -- A job that is set aside from here on is not held by the rules.
        meta = case when j.meta #> '{limits,partition}' is not null
          then nullif(j.meta #- '{limits,partition}', '{"limits": {}}') else j.meta end
      where j.ctid = any (v_part.tids)
      returning j.id, j.priority, j.pos, j.func, j.arguments,
        j.attempt, j.max_attempts, j.crashes, j.meta::text, j.limits::text,
        date_part('epoch', j.claimed_at) - date_part('epoch', greatest(j.run_at, j.pushed_at));
      if v_block then
        delete from {schema}.limits_blocks b using {schema}.jobs j
        where j.id = any (v_part.ids) and b.queue = p_queue
          and b.id::text = j.meta #>> '{dead_letters,replay_of}';
      end if;
      if 'rate' = any (s.kinds) then
        perform {schema}.limits_spend(s, v_part.keys, v_now);
      end if;
      v_ids := v_ids || v_part.ids;
      v_keys := v_keys || v_part.keys;
      v_running := v_running || array_fill(true, array[cardinality(v_part.ids)]);
      v_room := v_room - cardinality(v_part.ids);
      v_bytes := v_bytes - v_part.bytes;
      s.claimed_at := v_now;
    end if;
  end loop;
  if v_slots and cardinality(v_ids) > v_old then
    insert into {schema}.limits_slots (queue, lease, ids, keys)
    values (p_queue, p_lease, v_ids[v_old + 1:], v_keys[v_old + 1:]);
  end if;
  if array_remove(v_stops, null) <> '{}' then
    s.hints := s.hints || (
      select coalesce(jsonb_object_agg(l.key, l.pos), '{}') from (
        select h.key, least((s.hints ->> h.key)::bigint, min(h.value::bigint)) as pos
        from unnest(v_stops) as u (stops) cross join jsonb_each_text(u.stops) as h
        where s.hints ? h.key group by h.key) l);
  end if;
  update {schema}.limits_queues q
  set hints = s.hints, ring = s.ring, clock = s.clock, claimed_at = s.claimed_at,
    before = case
      when v_whole_front then s.hints
      when s.marked_at < v_now - interval '0.05 second' then (
        select coalesce(jsonb_object_agg(h.key, least(
          h.value::bigint, (s.hints ->> h.key)::bigint)), '{}') from jsonb_each_text(v_hints) h)
      else v_before end,
    marked_at = case
      when v_whole_front or s.marked_at < v_now - interval '0.05 second' then v_now
      else s.marked_at end,
    front_at = case
      when v_front_read
      then v_now + greatest(interval '0.5 second', 20 * (clock_timestamp() - v_began))
      else s.front_at end
  where q.queue = p_queue;
end
$$
