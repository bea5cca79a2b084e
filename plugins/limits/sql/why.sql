-- Why the job $1 of a queue with rules does not start: the number of a rule whose slots are taken, and
-- up to 6 jobs that hold them; the number of a rate limit without a token, the seconds until one is
-- there, and whether a job asked for a pause; how many held jobs of its partition are ahead, at most
-- 1,000; its partition, and its value for that rule; a failed job that blocks its sequence; and
-- whether it is held. No row: the rules do not keep it from starting. A rule for the whole queue
-- leaves its jobs pending.
-- Index: the primary keys, jobs_limits_held. No locks. Safe to repeat.
select
  full_rule.no,
  full_rule.holders,
  rate.no,
  extract(epoch from rate.ready_at - clock_timestamp())::float8,
  rate.paused,
  (
    select count(*)
    from (
      select
      from {schema}.jobs as a
      where a.state = 3 and a.meta ? 'limits' and not a.meta ? 'hold' and a.queue = j.queue
        and a.meta #>> '{limits,partition}' = part.name
        and (a.priority > j.priority or (a.priority = j.priority and a.pos < j.pos))
      limit 1000) as ahead),
  part.key,
  {schema}.limits_group(part.key, coalesce(full_rule.by_no, rate.by_no), cardinality(q.bys)),
  block.id,
  j.state = 3
from {schema}.jobs as j
join {schema}.limits_queues as q on q.queue = j.queue
cross join lateral (
  select {schema}.limits_key(q.bys, j.func, j.arguments, j.meta), j.meta #>> '{limits,partition}'
) as part (key, name)
left join {schema}.limits_partitions as p on p.queue = j.queue and p.key = part.name
left join lateral (
  select r.no, r.by_no, (array_agg(u.id::text order by u.id))[:6] as holders
  from unnest(q.kinds, q.by_nos, q.maxima) with ordinality as r (kind, by_no, most, no)
  join {schema}.limits_slots as l on l.queue = j.queue
  cross join unnest(l.ids, l.keys) as u (id, key)
  join {schema}.jobs as s
    on s.id = u.id and s.queue = j.queue and (r.kind = 'sequential' or (s.state = 1 and s.lease = l.lease))
  where r.kind in ('concurrency', 'sequential')
    and {schema}.limits_group(u.key, r.by_no, cardinality(q.bys))
      = {schema}.limits_group(part.key, r.by_no, cardinality(q.bys))
  group by r.no, r.by_no, r.most
  having count(distinct u.id) >= r.most
  order by r.no limit 1) as full_rule on true
left join lateral (
  select r.no, r.by_no, f.ready_at, coalesce(b.paused_until > clock_timestamp(), false) as paused
  from unnest(q.kinds, q.by_nos, q.rates) with ordinality as r (kind, by_no, rate, no)
  join {schema}.limits_buckets as b
    on b.queue = j.queue and b.rule = r.no and b.grp = {schema}.limits_group(part.key, r.by_no, cardinality(q.bys))
  cross join lateral greatest(
    b.paused_until, b.at + interval '1 second' * ((1 - b.tokens) / r.rate)) as f (ready_at)
  where r.kind = 'rate' and f.ready_at > clock_timestamp()
  order by f.ready_at desc
  limit 1) as rate on true
left join lateral (
  select b.id
  from {schema}.limits_blocks as b
  cross join unnest(q.kinds, q.by_nos) as r (kind, by_no)
  where b.queue = j.queue and r.kind = 'sequential'
    and {schema}.limits_group(b.key, r.by_no, cardinality(q.bys))
      = {schema}.limits_group(part.key, r.by_no, cardinality(q.bys))
  limit 1) as block on true
where j.id = $1::uuid and case j.state
    when 3 then p.key is not null
    when 0 then full_rule.no is not null or rate.no is not null or block.id is not null
  end
