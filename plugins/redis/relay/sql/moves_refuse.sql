-- Records why the job $1, taken under the lease $2, cannot be moved to Redis, to be retried after $4
-- seconds. Index: the primary key. Locks: the row. Safe to repeat.
update {schema}.redis_moves
set problem = left($3::text, 2000), taken_until = clock_timestamp() + $4::float8 * interval '1 second'
where id = $1::uuid
  and lease = $2::uuid
