-- Deletes jobs $1 of the outbox, by position, which are in Redis now. Index: the primary key.
-- Locks: the rows. Safe to repeat.
delete from {schema}.redis_outbox where pos = any($1::bigint[])
