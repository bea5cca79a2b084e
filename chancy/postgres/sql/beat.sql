-- Says that a worker lives; no row: it was declared dead. Index: the primary key of workers.
-- Locks: its row. Safe to repeat.
update {schema}.workers
set beat_at = clock_timestamp()
where id = $1::uuid
returning 1
