-- Deletes the moves of jobs $1 to Redis under the leases $2. Index: the primary key. Locks: the rows.
-- Safe to repeat.
delete from {schema}.redis_moves
where id = any($1::uuid[])
  and lease = any($2::uuid[])
