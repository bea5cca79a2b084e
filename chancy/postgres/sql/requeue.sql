-- Settles attempts that release their jobs; see the function. Index: the primary key of jobs.
-- Locks: rows of jobs in the given order. Safe to repeat: settled.sql then returns what was
-- settled before.
select requeue
from {schema}.requeue(
  $1::uuid[], $2::uuid[], $3::smallint[], $4::float8[], $5::timestamptz[], $6::text[],
  $7::boolean[], $8::boolean[], $9::text[], $10::boolean[])
