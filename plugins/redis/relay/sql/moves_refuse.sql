-- Records why the job $1, taken under the lease $2, cannot be moved to Redis, to be retried after $4
-- seconds; after twice as long with each refusal, up to $5 seconds. Index: the primary key. Locks: the
-- row. Not safe to repeat: the pause would be longer.
update {schema}.redis_moves
set problem = left($3::text, 2000), refusals = refusals + 1, taken_until = clock_timestamp()
  + least($4::float8 * 2 ^ least(refusals, 30), $5::float8) * interval '1 second'
where id = $1::uuid
  and lease = $2::uuid
