-- Gives up the turn of the relay $1. Index: the primary key. Locks: the turn. Safe to repeat.
update {schema}.redis_turns
set until = clock_timestamp()
where name = 'events'
  and holder = $1::uuid
