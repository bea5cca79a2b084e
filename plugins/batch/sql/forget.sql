-- Deletes batches without jobs that ended over $1 seconds ago: up to $2 of the oldest 1,000.
-- Returns how many.
-- Index: batches_finished, the primary keys. Locks: what it deletes, skipping locked rows.
-- Safe to repeat.
with gone as (
  delete from {schema}.batches as b
  using (
    select o.id
    from (
      select w.id
      from {schema}.batches as w
      where w.finished_at < now() - $1::float8 * interval '1 second'
      order by w.finished_at
      limit 1000) as w
    join {schema}.batches as o on o.id = w.id
    where not exists (
      select
      from {schema}.batches_jobs as m
      where m.batch_id = w.id)
    limit $2::int
    for update of o skip locked) as l
  where b.id = l.id
  returning b.id),
shards as (
  delete from {schema}.batches_shards as s
  using gone as g
  where s.batch_id = g.id),
callbacks as (
  delete from {schema}.batches_callbacks as c
  using gone as g
  where c.batch_id = g.id)
select count(*)
from gone
