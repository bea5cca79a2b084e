-- Says which queues a worker serves; no row: it was declared dead. Index: the primary key of
-- workers. Locks: its row. Safe to repeat.
update {schema}.workers
set queues = $2::text[]
where id = $1::uuid
returning 1
