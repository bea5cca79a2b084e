-- The states of those of these batches that exist. Index: the primary key. No locks. Safe to repeat.
select b.id, b.state
from {schema}.batches as b
where b.id = any ($1::uuid[])
