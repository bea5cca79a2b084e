-- Pauses the groups of jobs $1, which raised RateLimited, until they are due, for each rate limit of
-- their queue. Index: the primary keys. Locks: rows of limits_buckets in the order of their key.
-- Safe to repeat.
insert into {schema}.limits_buckets as b (queue, rule, grp, tokens, at, paused_until)
select
  q.queue,
  r.no,
  {schema}.limits_group(
    {schema}.limits_key(q.bys, j.func, j.arguments, j.meta), r.by_no, cardinality(q.bys)),
  min(r.burst),
  clock_timestamp(),
  max(j.run_at)
from {schema}.jobs as j
join {schema}.limits_queues as q on q.queue = j.queue
cross join unnest(q.kinds, q.by_nos, q.bursts) with ordinality as r (kind, by_no, burst, no)
where j.id = any ($1::uuid[]) and j.state = 2 and r.kind = 'rate'
group by 1, 2, 3
order by 1, 2, 3
on conflict (queue, rule, grp) do update
set paused_until = greatest(b.paused_until, excluded.paused_until)
