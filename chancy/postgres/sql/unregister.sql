-- Deletes a worker. Index: the primary key of workers. Locks: its row, as beat.sql. Safe to repeat.
delete from {schema}.workers
where id = $1::uuid
  and set_config('lock_timeout', '2s', true) is not null
