-- Leases up to $2 pending jobs of the queue $1 for $4 seconds, and none after $3 bytes of them; see
-- the function redis_move.
-- Index: jobs_pending, the primary keys. Locks: see the function. Not safe to repeat.
select *
from {schema}.redis_move($1::text, $2::int, $3::bigint, $4::float8)
