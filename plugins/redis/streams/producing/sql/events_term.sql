-- Begins a term above $2, which Redis knows of although it is higher than that of the relay $1: as
-- after a restored backup. Gives it; nothing if the relay has lost its turn. Index: the primary
-- key. Locks: the turn. Safe to repeat.
update {schema}.redis_turns
set term = greatest(term, $2::bigint) + 1
where name = 'events'
  and holder = $1::uuid
  and until > clock_timestamp()
returning term
