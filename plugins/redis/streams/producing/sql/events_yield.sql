-- Releases the lease of the relay $2 of the prefix $1. Index: the primary key. Locks: the lease.
-- Safe to repeat.
update {schema}.redis_turns
set until = clock_timestamp()
where prefix = $1::text
  and holder = $2::uuid
