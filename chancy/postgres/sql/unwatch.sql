-- Cancels the notifications that one call of watch.sql requests; those of other calls remain. Index: the
-- primary key of awaited. Locks: rows of awaited, skipping locked ones, which are left to the pruner.
-- Repeated, it cancels those of another call, whose caller polls.
with ended as materialized (
  select x.id, x.waiters
  from {schema}.awaited as x
  where x.id = any ($1::uuid[])
  for update skip locked
), others as (
  update {schema}.awaited as a
  set waiters = a.waiters - 1
  where a.id = any (array(select e.id from ended as e where e.waiters > 1)))
delete from {schema}.awaited as a
where a.id = any (array(select e.id from ended as e where e.waiters <= 1))
returning a.id
