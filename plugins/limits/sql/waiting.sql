-- The partitions of queue $1 whose first held jobs are the oldest, at most $2: the key, how many jobs are
-- held, at most 1,000, when the first was pushed, the number of a rule without a free slot, the seconds
-- until it is ready, and a failed job that blocks it. Looks at 100,000 partitions, and at the first job
-- of five times $2 with the lowest positions: an index by position would cost claims an entry.
-- Index: the primary key of limits_partitions, jobs_limits_held. No locks. Safe to repeat.
select
  p.key,
  (
    select count(*)
    from (
      select
      from {schema}.jobs as j
      where j.state = 3
        and j.meta ? 'limits'
        and not j.meta ? 'hold'
        and j.queue = $1::text
        and j.meta #>> '{limits,partition}' = p.key
      limit 1000) as held),
  p.pushed_at,
  nullif(split_part(p.blocked, ':', 1)::int, 0),
  extract(epoch from p.ready_at - clock_timestamp())::float8,
  (
    select b.id
    from {schema}.limits_blocks as b
    join {schema}.limits_queues as q on q.queue = b.queue
    cross join unnest(q.kinds, q.by_nos) with ordinality as r (kind, by_no, no)
    where b.queue = $1::text
      and r.kind = 'sequential'
      and p.blocked = r.no || ':' || {schema}.limits_group(b.key, r.by_no, cardinality(q.bys))
    limit 1)
from (
  select c.key, c.blocked, c.ready_at, f.pushed_at
  from (
    select r.key, r.blocked, r.ready_at
    from (
      select * from {schema}.limits_partitions as a
      where a.queue = $1::text
      limit 100000) as r
    order by r.after_pos
    limit 5 * $2::int) as c
  left join lateral (
    select j.pushed_at
    from {schema}.jobs as j
    where j.state = 3
      and j.meta ? 'limits'
      and not j.meta ? 'hold'
      and j.queue = $1::text
      and j.meta #>> '{limits,partition}' = c.key
    order by j.priority desc, j.pos
    limit 1) as f on true
  order by f.pushed_at
  limit $2::int) as p
order by p.pushed_at
