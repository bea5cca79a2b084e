-- Deletes jobs $1, which Redis has now; see the function redis_moved. Index: the primary keys.
-- Locks: as that says. Safe to repeat.
select id, gone
from {schema}.redis_moved($1::uuid[])
