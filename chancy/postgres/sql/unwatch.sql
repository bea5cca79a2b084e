-- Cancels the notifications that watch.sql requests. Index: the primary key of awaited. Locks: rows
-- of awaited, skipping locked ones: the holder of the lock deletes them. Safe to repeat.
delete from {schema}.awaited as a
where a.id = any (array(
  select x.id
  from {schema}.awaited as x
  where x.id = any ($1::uuid[])
  for update skip locked))
returning a.id
