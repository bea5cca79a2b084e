-- Starts a term above $3, the term stored in Redis, which is higher than that of the relay $2 of
-- the prefix $1, for example after a restored backup. Returns the new term; nothing if the relay has
-- lost its lease.
-- Index: the primary key. Locks: the lease. Safe to repeat.
update {schema}.redis_turns
set term = greatest(term, $3::bigint) + 1
where prefix = $1::text
  and holder = $2::uuid
  and until > clock_timestamp()
returning term
