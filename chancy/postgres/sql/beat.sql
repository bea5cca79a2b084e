-- Records a worker's heartbeat, sent at the Unix time $3 by its clock, with its memory in bytes ($4;
-- null: as before); returns no row if the worker was declared dead.
-- Index: the primary key of workers. Locks: its row, for which it waits for 2 s at most, so that
-- other upkeep of the worker continues. Safe to repeat.
update {schema}.workers
set beat_at = clock_timestamp(),
    blocked_s = $2::float8,
    ahead_s = $3::float8 - extract(epoch from clock_timestamp())::float8,
    memory_bytes = coalesce($4::bigint, memory_bytes)
where id = $1::uuid
  and set_config('lock_timeout', '2s', true) is not null
returning 1
