-- Adds a worker. Index: the primary key of workers. Locks: its row. Safe to repeat.
insert into {schema}.workers (id, host, pid, tags, queues, version, heartbeat_timeout_s)
values ($1::uuid, $2::text, $3::int, $4::text[], $5::text[], $6::text, $7::float8)
on conflict (id) do update
set beat_at = clock_timestamp()
