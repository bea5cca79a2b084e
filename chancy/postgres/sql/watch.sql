-- Requests a notification when one of these jobs finishes. Index: the primary key of awaited.
-- Locks: in the order of the ids; waits for transactions that delete one of them. Safe to repeat.
insert into {schema}.awaited (id)
select u.id
from unnest($1::uuid[]) as u (id)
order by u.id
on conflict (id) do nothing
returning id
