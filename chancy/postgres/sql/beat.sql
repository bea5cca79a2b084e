-- Records a worker's heartbeat, sent at the Unix time $3 by its clock, with its memory in bytes ($4; null: as before); returns no row
-- if the worker was declared dead. Index: the primary key of workers. Locks: its row. Safe to repeat.
update {schema}.workers
set beat_at = clock_timestamp(),
    blocked_s = $2::float8,
    ahead_s = $3::float8 - extract(epoch from clock_timestamp())::float8,
    memory_bytes = coalesce($4::bigint, memory_bytes)
where id = $1::uuid
returning 1
