-- Deletes jobs $1 of moves under the leases $2, which are in Redis now; see the function redis_moved.
-- Index: the primary keys. Locks: see the function. Safe to repeat.
select id, gone
from {schema}.redis_moved($1::uuid[], $2::uuid[])
