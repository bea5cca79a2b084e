-- Locks those of the workflows $1 that no other transaction has locked, and returns them. A session
-- that hangs holds its locks for 10 s at most.
-- Index: the primary key. Locks: the workflows by id, exclusively, skipping locked ones. Safe to
-- repeat.
select w.id
from {schema}.workflows as w
where w.id = any ($1::uuid[])
  and set_config('idle_in_transaction_session_timeout', '10s', true) is not null
order by w.id
for no key update skip locked
