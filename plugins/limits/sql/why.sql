-- Why the held job $1 of a queue with rules waits: the number of a rule whose slots are taken, and up
-- to 6 jobs that hold them; the seconds until a token is there; how many held jobs of its partition
-- are ahead, at most 1,000; its partition; and a failed job that blocks its sequence. No row: it is
-- not held by rules.
-- Index: the primary keys, jobs_limits_held. No locks. Safe to repeat.
select
  full_rule.no,
  full_rule.holders,
  extract(epoch from p.ready_at - clock_timestamp())::float8,
  (
    select count(*)
    from (
      select
      from {schema}.jobs as a
      where a.state = 3
        and a.meta ? 'limits'
        and a.queue = j.queue
        and a.meta #>> '{limits,partition}' = p.key
        and (a.priority > j.priority or (a.priority = j.priority and a.pos < j.pos))
      limit 1000) as ahead),
  p.key,
  (
    select b.id
    from {schema}.limits_blocks as b
    cross join unnest(q.kinds, q.by_nos) as r (kind, by_no)
    where b.queue = j.queue
      and r.kind = 'sequential'
      and {schema}.limits_group(b.key, r.by_no, cardinality(q.bys))
        = {schema}.limits_group(p.key, r.by_no, cardinality(q.bys))
    limit 1)
from {schema}.jobs as j
join {schema}.limits_queues as q on q.queue = j.queue
join {schema}.limits_partitions as p
  on p.queue = j.queue and p.key = j.meta #>> '{limits,partition}'
left join lateral (
  select r.no, (array_agg(u.id::text order by u.id))[:6] as holders
  from unnest(q.kinds, q.by_nos, q.maxima) with ordinality as r (kind, by_no, most, no)
  join {schema}.limits_slots as l on l.queue = j.queue
  cross join unnest(l.ids, l.keys) as u (id, key)
  join {schema}.jobs as s
    on s.id = u.id and s.queue = j.queue and (r.kind = 'sequential' or (s.state = 1 and s.lease = l.lease))
  where r.kind in ('concurrency', 'sequential')
    and {schema}.limits_group(u.key, r.by_no, cardinality(q.bys))
      = {schema}.limits_group(p.key, r.by_no, cardinality(q.bys))
  group by r.no, r.most
  having count(distinct u.id) >= r.most
  order by r.no
  limit 1) as full_rule on true
where j.id = $1::uuid and j.state = 3
