-- Deletes a worker. Index: the primary key of workers. Locks: its row. Safe to repeat.
delete from {schema}.workers
where id = $1::uuid
