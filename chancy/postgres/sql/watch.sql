-- Has a notice sent when one of these jobs finishes. Index: the primary key of awaited.
-- Locks: waits for those who forget one of them; in the order of the ids. Safe to repeat.
insert into {schema}.awaited (id)
select u.id
from unnest($1::uuid[]) as u (id)
order by u.id
on conflict (id) do nothing
returning id
