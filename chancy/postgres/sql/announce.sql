-- Stores which queues a worker serves, why it cannot serve others, and which functions it does not
-- know; returns no row if the worker was declared dead. Index: the primary key of workers.
-- Locks: its row, as beat.sql. Safe to repeat.
update {schema}.workers
set
  queues = $2::text[],
  broken = $3::text::jsonb,
  unknown = $4::text[]
where id = $1::uuid
  and set_config('lock_timeout', '2s', true) is not null
returning 1
