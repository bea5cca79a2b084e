-- Requests a notification when one of these jobs finishes. Index: the primary key of awaited.
-- Locks: in the order of the ids; waits for transactions that change or delete one of them. Repeated,
-- it leaves a row to the pruner.
insert into {schema}.awaited as a (id)
select u.id
from unnest($1::uuid[]) as u (id)
order by u.id
on conflict (id) do update
set waiters = a.waiters + 1, asked_at = clock_timestamp()
returning id
