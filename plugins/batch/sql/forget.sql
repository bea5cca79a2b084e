-- Forgets batches without jobs that ended over $1 seconds ago, up to $2 of them. Gives how many.
-- Index: batches_finished, the primary keys. Locks: what it deletes, skipping locked rows.
-- Safe to repeat.
with gone as (
  delete from {schema}.batches as b
  using (
    select o.id
    from {schema}.batches as o
    where o.finished_at < now() - $1::float8 * interval '1 second'
      and not exists (
        select
        from {schema}.batches_jobs as m
        where m.batch_id = o.id)
    order by o.finished_at
    limit $2::int
    for update skip locked) as l
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
