-- Forgets that jobs $1 were on their way to Redis. Index: the primary key. Locks: the rows.
-- Safe to repeat.
delete from {schema}.redis_moves
where id = any($1::uuid[])
