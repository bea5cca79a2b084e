-- Deletes the moves of jobs $1 to Redis. Index: the primary key. Locks: the rows.
-- Safe to repeat.
delete from {schema}.redis_moves
where id = any($1::uuid[])
