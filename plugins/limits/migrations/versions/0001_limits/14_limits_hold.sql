-- Holds pending jobs, given by their rows, partitions and keys, and adds the partitions: in the ring, unless
-- one is blocked by a group or waits for a time. Returns the ring with the lanes of new partitions.
-- p_fair: one lane for all priorities, as a higher one gives a partition no larger share.
-- Index: the rows by ctid, the primary key of limits_partitions. Locks: none but those of the caller,
-- who has locked the rows.
create function {schema}.limits_hold(
  p_queue text, p_ring jsonb, p_tids tid[], p_parts text[], p_keys text[], p_blocked text[],
  p_ready timestamptz[], p_fair boolean
) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_lanes jsonb;
begin
  with held as (
    update {schema}.jobs j
    set state = 3,
      meta = case
        when j.meta is null
          then jsonb_build_object('limits', jsonb_build_object('partition', u.key))
        else (case when jsonb_typeof(j.meta) = 'object' then j.meta else '{}' end)
          || jsonb_build_object('limits',
            (case when jsonb_typeof(j.meta -> 'limits') = 'object' then j.meta -> 'limits'
              else '{}' end) || jsonb_build_object('partition', u.key)) end
    from unnest(p_tids, p_parts, p_keys, p_blocked, p_ready)
      as u (tid, key, head, blocked, ready_at)
    where j.ctid = u.tid
    returning u.key, nullif(u.head, u.key) as head, u.blocked, u.ready_at, j.priority, j.pos
  ), part as (
    select distinct on (h.key collate "C") h.key, h.head, h.priority, h.pos, h.blocked, h.ready_at,
      case when p_fair then 0::smallint else h.priority end as lane
    from held h order by h.key collate "C", h.priority desc, h.pos
  ), changed as (
    -- The conflict below would lock each partition, also those that stay as they are.
    select n.* from part n
    left join lateral (
      select * from {schema}.limits_partitions a
      where a.queue = p_queue and a.key = n.key limit 1) p on true
    where p.key is null or n.lane > p.priority
      or (n.priority, p.after_pos) > (p.after_priority, n.pos - 1)
  ), stored as (
    insert into {schema}.limits_partitions as p (
      queue, key, head, priority, turn, blocked, ready_at, after_priority, after_pos)
    select p_queue, n.key, n.head, n.lane,
      case when n.blocked is null and n.ready_at is null
        then nextval('{schema}.limits_turns') end,
      n.blocked, case when n.blocked is null then n.ready_at end, n.priority, n.pos - 1
    from changed n
    on conflict (queue, key) do update
    set (priority, turn, head, blocked, ready_at, after_priority, after_pos) = (
      select greatest(p.priority, excluded.priority),
        case when c.changed or p.turn is not null and excluded.priority > p.priority
          then nextval('{schema}.limits_turns') else p.turn end,
        case when c.first then excluded.head else p.head end,
        -- Another job is the first one of a sequence now, and may not have to wait.
        case when not c.changed then p.blocked end,
        case when not c.changed then p.ready_at end,
        case when c.first then excluded.after_priority else p.after_priority end,
        case when c.first then excluded.after_pos else p.after_pos end
      from (
        select o.first, o.first and excluded.head is not null as changed
        from (select (excluded.after_priority, p.after_pos) > (p.after_priority, excluded.after_pos)
          as first) o) c)
    where excluded.priority > p.priority
      or (excluded.after_priority, p.after_pos) > (p.after_priority, excluded.after_pos)
    returning p.priority, p.turn)
  select jsonb_object_agg(l.priority, l.turn) into v_lanes
  from (select t.priority, min(t.turn) as turn from stored t where t.turn is not null group by 1) l;
  return coalesce(v_lanes, '{}') || p_ring;
end
$$
