-- No notice is needed any more. Index: the primary key of awaited. Locks: rows of awaited,
-- skipping locked ones: whoever locks one deletes it. Safe to repeat.
delete from {schema}.awaited as a
where a.id = any (array(
  select x.id
  from {schema}.awaited as x
  where x.id = any ($1::uuid[])
  for update skip locked))
returning a.id
