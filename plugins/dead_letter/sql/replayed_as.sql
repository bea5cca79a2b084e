-- The job of the last replay of the dead letter $1; null: it was not replayed. No other transaction
-- replays it until this one ends. Index: the primary key. Locks: the row. Safe to repeat.
select d.replayed_as
from {schema}.dead_letters as d
where d.id = $1::uuid
for update
