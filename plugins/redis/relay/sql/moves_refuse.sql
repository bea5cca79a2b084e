-- Records why the job $1 cannot be moved to Redis, to be retried after $3 seconds.
-- Index: the primary key. Locks: the row. Safe to repeat.
update {schema}.redis_moves
set problem = left($2::text, 2000), taken_until = clock_timestamp() + $3::float8 * interval '1 second'
where id = $1::uuid
