-- Releases the lease of the relay $1. Index: the primary key. Locks: the lease. Safe to repeat.
update {schema}.redis_turns
set until = clock_timestamp()
where name = 'events'
  and holder = $1::uuid
