-- Records a worker's heartbeat; returns no row if the worker was declared dead. Index: the primary
-- key of workers. Locks: its row. Safe to repeat.
update {schema}.workers
set beat_at = clock_timestamp(),
    blocked_s = $2::float8
where id = $1::uuid
returning 1
