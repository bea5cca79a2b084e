-- The states and errors of those of these workflows that exist. Index: the primary key. No locks.
-- Safe to repeat.
select w.id, w.state, w.error
from {schema}.workflows as w
where w.id = any ($1::uuid[])
