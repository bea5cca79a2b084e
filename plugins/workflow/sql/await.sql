-- Requests notifications when these workflows end, and returns the states of those that exist.
-- Index: the primary keys. Locks: what it inserts. Safe to repeat.
with asked as (
  insert into {schema}.awaited (id)
  select u.id
  from unnest($1::uuid[]) as u (id)
  order by u.id
  on conflict do nothing)
select w.id, w.state, w.error
from {schema}.workflows as w
where w.id = any ($1::uuid[])
