-- Batches, newest first, each with its counts: $1 ids, $2 name, $3 states (null matches all);
-- $4 older than this one; $5 at most. Index: the primary keys, or batches_name. No locks.
-- Safe to repeat.
select
  b.id, b.name, b.state, b.open, {schema}.utc(b.pushed_at), {schema}.utc(b.stop_asked_at),
  {schema}.utc(b.finished_at), c.pending + coalesce(a.jobs, 0), c.succeeded, c.failed, c.cancelled
from (
  select *
  from {schema}.batches as o
  where ($1::uuid[] is null or o.id = any ($1::uuid[]))
    and ($2::text is null or o.name = $2::text)
    and ($3::smallint[] is null or o.state = any ($3::smallint[]))
    and ($4::uuid is null or o.id < $4::uuid)
  order by o.id desc
  limit $5::int) as b
cross join lateral (
  select
    coalesce(sum(s.pending), 0)::int as pending, coalesce(sum(s.succeeded), 0)::int as succeeded,
    coalesce(sum(s.failed), 0)::int as failed, coalesce(sum(s.cancelled), 0)::int as cancelled
  from {schema}.batches_shards as s
  where s.batch_id = b.id) as c
cross join lateral (
  select sum(d.jobs)::int as jobs
  from {schema}.batches_added as d
  where d.batch_id = b.id) as a
order by b.id desc
