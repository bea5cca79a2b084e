-- One step through a lane; see the function. Index: jobs_pending. Locks: the rows that it
-- updates, skipping locked ones. Safe to repeat.
select seen, reached, raised
from {schema}.reprioritize_step(
  $1::text, $2::smallint, $3::bigint, $4::text[], $5::float8[], $6::int[],
  $7::int[], $8::int, $9::boolean)
