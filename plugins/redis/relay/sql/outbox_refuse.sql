-- Records why the job $1 of the outbox, by position, cannot be pushed to Redis, to be retried after
-- $3 seconds. Index: the primary key. Locks: the row. Safe to repeat.
update {schema}.redis_outbox
set problem = left($2::text, 2000), taken_until = clock_timestamp() + $3::float8 * interval '1 second'
where pos = $1::bigint
