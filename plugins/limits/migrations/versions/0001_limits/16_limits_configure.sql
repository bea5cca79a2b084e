-- Applies the rules of a queue; null: none. Returns false if there is more to do in another call:
-- where the partition keys change, or those of fair shares or sequences, held jobs are made pending
-- again, 5,000 a call. Locked ones are left to the sweep. Rate limits of the same path keep what they have spent, and their pauses.
-- Index: the primary keys, jobs_limits_held; jobs_running as a whole, once. Locks: the row of
-- limits_queues, rows of jobs, skipping locked ones. Safe to repeat.
create function {schema}.limits_configure(p_queue text, p_rules jsonb) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_bys text[] := array(
    select r.value ->> 'by' from jsonb_array_elements(coalesce(p_rules, '[]')) with ordinality r
    where r.value ->> 'by' is not null group by 1 order by min(r.ordinality));
  v_old {schema}.limits_queues;
  v_orders constant jsonpath := '$[*] ? (@.rule == "fair" || @.rule == "sequential").keyvalue() ? (@.key == "rule" || @.key == "by").value';
  v_strays uuid[] := '{}';
  v_buckets {schema}.limits_buckets[];
begin
  select * into v_old from {schema}.limits_queues q where q.queue = p_queue for update;
  if p_rules is null or v_old.bys is distinct from v_bys
    or jsonb_path_query_array(v_old.rules, v_orders) is distinct from
      jsonb_path_query_array(p_rules, v_orders)
  then
    if {schema}.limits_release(p_queue, 5000, null) = 5000 then
      return false;
    end if;
    v_strays := array(
      select j.id from {schema}.jobs j
      where j.state = 3 and j.meta ? 'limits' and not j.meta ? 'hold' and j.queue = p_queue
        and j.meta #>> '{limits,partition}' is not null);
    delete from {schema}.limits_partitions p where p.queue = p_queue;
    delete from {schema}.limits_tenants t where t.queue = p_queue;
    delete from {schema}.limits_slots l where l.queue = p_queue;
    delete from {schema}.limits_blocks b where b.queue = p_queue;
    if p_rules is not null or v_strays = '{}' then
      delete from {schema}.limits_queues q where q.queue = p_queue;
    end if;
  end if;
  with gone as (
    delete from {schema}.limits_buckets b where b.queue = p_queue returning b)
  select array_agg(gone.b) into v_buckets from gone;
  if p_rules is null then
    return true;
  end if;
  insert into {schema}.limits_queues as q (
    queue, rules, bys, strays, kinds, by_nos, maxima, rates, bursts)
  select p_queue, p_rules, v_bys, v_strays,
    array_agg(r.value ->> 'rule' order by r.ordinality),
    array_agg(coalesce(array_position(v_bys, r.value ->> 'by'), 0) order by r.ordinality),
    array_agg(coalesce((r.value ->> 'limit')::int, 1) order by r.ordinality),
    array_agg(coalesce((r.value ->> 'allowed')::float8 / (r.value ->> 'per_s')::float8, 1)
      order by r.ordinality),
    array_agg(coalesce((r.value ->> 'burst')::float8, 1) order by r.ordinality)
  from jsonb_array_elements(p_rules) with ordinality r
  on conflict (queue) do update
  set rules = excluded.rules, kinds = excluded.kinds, by_nos = excluded.by_nos,
    maxima = excluded.maxima, rates = excluded.rates, bursts = excluded.bursts;
  insert into {schema}.limits_buckets (queue, rule, grp, tokens, at, paused_until)
  select p_queue, n.no, b.grp, least(n.burst, o.burst,
      b.tokens + greatest(extract(epoch from clock_timestamp() - b.at), 0) * o.rate),
    greatest(b.at, clock_timestamp()), b.paused_until
  from unnest(v_buckets) as b
  join unnest(v_old.by_nos, v_old.rates, v_old.bursts) with ordinality as o (by_no, rate, burst, no)
    on o.no = b.rule
  join {schema}.limits_queues q on q.queue = p_queue
  join unnest(q.kinds, q.by_nos, q.bursts) with ordinality as n (kind, by_no, burst, no)
    on n.kind = 'rate' and q.bys[n.by_no] is not distinct from v_old.bys[o.by_no];
  if v_old.bys is not distinct from v_bys then
    -- Turns that have begun get the shares of changed weights.
    update {schema}.limits_tenants t set unfinished = null
    where t.queue = p_queue and t.unfinished is not null;
    with ready as (
      update {schema}.limits_partitions p
      set turn = coalesce(p.turn, nextval('{schema}.limits_turns')), unfinished = null,
        blocked = null, ready_at = null
      where p.queue = p_queue and (p.turn is null or p.unfinished is not null)
      returning p.priority, p.turn)
    update {schema}.limits_queues q
    set ring = coalesce((
      select jsonb_object_agg(r.priority, r.turn)
      from (select ready.priority, min(ready.turn) as turn from ready group by 1) r), '{}') || q.ring
    where q.queue = p_queue;
  end if;
  perform {schema}.limits_adopt(p_queue);
  return true;
end
$$
