-- Holds pending jobs, given by their rows and partitions, and adds the partitions: in the ring, unless
-- one is blocked by a group or waits for a time. Returns the ring with the lanes of new partitions.
-- Index: the rows by ctid, the primary key of limits_partitions. Locks: none but those of the caller,
-- who has locked the rows.
create function {schema}.limits_hold(
  p_queue text, p_ring jsonb, p_tids tid[], p_keys text[], p_blocked text[],
  p_ready timestamptz[]
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
      meta = (case when jsonb_typeof(j.meta) = 'object' then j.meta else '{}' end)
        || jsonb_build_object('limits',
          (case when jsonb_typeof(j.meta -> 'limits') = 'object' then j.meta -> 'limits'
            else '{}' end) || jsonb_build_object('partition', u.key))
    from unnest(p_tids, p_keys, p_blocked, p_ready) as u (tid, key, blocked, ready_at)
    where j.ctid = u.tid
    returning u.key, u.blocked, u.ready_at, j.priority, j.pos
  ), part as (
    select distinct on (h.key) h.key, h.priority, h.pos, h.blocked, h.ready_at
    from held h order by h.key, h.priority desc, h.pos
  ), stored as (
    insert into {schema}.limits_partitions as p (
      queue, key, priority, turn, blocked, ready_at, after_priority, after_pos)
    select p_queue, n.key, n.priority,
      case when n.blocked is null and n.ready_at is null
        then nextval('{schema}.limits_turns') end,
      n.blocked, case when n.blocked is null then n.ready_at end, n.priority, n.pos - 1
    from part n
    on conflict (queue, key) do update
    set priority = greatest(p.priority, excluded.priority),
      turn = case when p.turn is not null and excluded.priority > p.priority
        then nextval('{schema}.limits_turns') else p.turn end,
      after_priority = case
        when (excluded.after_priority, p.after_pos) > (p.after_priority, excluded.after_pos)
        then excluded.after_priority else p.after_priority end,
      after_pos = case
        when (excluded.after_priority, p.after_pos) > (p.after_priority, excluded.after_pos)
        then excluded.after_pos else p.after_pos end
    where excluded.priority > p.priority
      or (excluded.after_priority, p.after_pos) > (p.after_priority, excluded.after_pos)
    returning p.priority, p.turn)
  select jsonb_object_agg(l.priority, l.turn) into v_lanes
  from (select t.priority, min(t.turn) as turn from stored t where t.turn is not null group by 1) l;
  return coalesce(v_lanes, '{}') || p_ring;
end
$$
