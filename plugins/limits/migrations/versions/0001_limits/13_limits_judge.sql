-- Decides for jobs, given by their partitions in the order in which they are to run, which may run
-- now by the rules with a partition key. Returns lists with a value for each: whether it may run; and
-- if not, the group without a free slot ('rule:group') or the time at which a token is there, neither
-- if another job of the batch took it.
-- p_keys, p_running: the jobs that hold slots, and which of them run. p_owners: whether a job holds
-- the slot of its sequence already. p_waits: jobs to leave out; null for them.
-- The joins of the lists are hash joins: nested loops over 1,000 jobs took 30 ms.
-- Index: the primary key of limits_buckets. No locks. Safe to repeat.
create function {schema}.limits_judge(
  s {schema}.limits_queues, p_keys text[], p_running boolean[], p_now timestamptz,
  p_candidates text[], p_owners boolean[], p_waits boolean[],
  out oks boolean[], out blocked text[], out ready_at timestamptz[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = on
set enable_nestloop = off
set jit = off
as $$
#variable_conflict use_column
begin
  if not exists (
    select from unnest(s.kinds, s.by_nos) as r (kind, by_no)
    where r.by_no > 0 and r.kind <> 'fair') then
    oks := array(
      select case when w.waits then null else true end
      from unnest(p_candidates, p_waits) with ordinality as w (key, waits, no) order by w.no);
    blocked := array_fill(null::text, array[cardinality(p_candidates)]);
    ready_at := array_fill(null::timestamptz, array[cardinality(p_candidates)]);
    return;
  end if;
  with rule as materialized (
    select r.* from unnest(s.kinds, s.by_nos, s.maxima, s.rates, s.bursts)
      with ordinality as r (kind, by_no, most, rate, burst, no)
    where r.by_no > 0 and r.kind in ('concurrency', 'sequential', 'rate')
  ), used as materialized (
    select r.no as rule, {schema}.limits_group(u.key, r.by_no, cardinality(s.bys)) as grp,
      count(*) as slots
    from unnest(p_keys, p_running) as u (key, running)
    cross join rule r
    where r.kind = 'sequential' or (r.kind = 'concurrency' and u.running)
    group by 1, 2
  ), candidate as materialized (
    select c.key, c.owner, c.no from unnest(p_candidates, p_owners, p_waits)
      with ordinality as c (key, owner, waits, no)
    where c.waits is not true
  ), asked as (
    select c.no, r.no as rule, r.kind, r.rate, r.burst, r.most,
      {schema}.limits_group(c.key, r.by_no, cardinality(s.bys)) as grp,
      coalesce(c.owner, false) and r.kind = 'sequential' as owner
    from candidate c cross join rule r
  ), free as (
    select g.rule, g.grp, b.paused_until,
      case
        when g.kind <> 'rate' then g.most - coalesce(u.slots, 0)
        when b.paused_until > p_now then 0
        when b.at is null then floor(g.burst)
        else floor(least(g.burst,
          b.tokens + greatest(extract(epoch from p_now - b.at), 0) * g.rate) + 1e-9)
      end as slots,
      case when g.kind = 'rate' then greatest(
        b.paused_until, b.at + interval '1 second' * ((1 - b.tokens) / g.rate)) end as ready_at
    from (select distinct a.rule, a.kind, a.grp, a.rate, a.burst, a.most from asked a) g
    left join used u on u.rule = g.rule and u.grp = g.grp
    left join lateral (
      select * from {schema}.limits_buckets b
      where g.kind = 'rate' and b.queue = s.queue and b.rule = g.rule and b.grp = g.grp
      limit 1) b on true
  ), ranked as materialized (
    select a.no, a.rule, a.kind, a.grp, a.owner, f.slots, f.ready_at,
      a.owner or row_number() over (
        partition by a.rule, a.grp order by a.owner desc, a.no) <= f.slots as fits
    from asked a join free f on f.rule = a.rule and f.grp = a.grp
  ), decided as materialized (
    select c.no, coalesce(bool_and(r.fits), true) as ok
    from candidate c left join ranked r on r.no = c.no group by c.no
  ), taken as materialized (
    select r.rule, r.grp, count(*) as jobs
    from ranked r join decided d on d.no = r.no and d.ok
    where not r.owner
    group by 1, 2
  ), reason as (
    select r.no,
      min(r.rule || ':' || r.grp) filter (where r.kind <> 'rate') as blocked,
      max(coalesce(r.ready_at, p_now)) filter (where r.kind = 'rate') as ready_at
    from ranked r
    left join taken t on t.rule = r.rule and t.grp = r.grp
    where not r.fits and coalesce(t.jobs, 0) >= r.slots
    group by r.no)
  select array_agg(d.ok order by a.no), array_agg(r.blocked order by a.no),
    array_agg(r.ready_at order by a.no)
  into oks, blocked, ready_at
  from generate_series(1, cardinality(p_candidates)) as a (no)
  left join decided d on d.no = a.no
  left join reason r on r.no = a.no and not d.ok;
end
$$
