-- Requests notifications when these batches end, and returns the states of those that exist.
-- Index: the primary keys. Locks: what it inserts. Safe to repeat.
with asked as (
  insert into {schema}.awaited (id)
  select u.id
  from unnest($1::uuid[]) as u (id)
  order by u.id
  on conflict do nothing)
select b.id, b.state
from {schema}.batches as b
where b.id = any ($1::uuid[])
