-- Settles attempts that finish their jobs; see the function. Index: the primary key of jobs.
-- Locks: rows of jobs in the given order. Safe to repeat: settled.sql then returns what was
-- settled before.
select finish
from {schema}.finish(
  $1::uuid[], $2::uuid[], $3::smallint[], $4::text[], $5::text[], $6::boolean[], $7::boolean[],
  $8::text[])
