-- Takes the ends of steps, and starts what they let go on; see the function.
-- Index: the primary keys. Locks: workflows by id, steps and joins by workflow and name.
-- Safe to repeat.
select {schema}.workflows_advance(
  $1::uuid[], $2::text[], $3::int[], $4::uuid[], $5::smallint[], $6::text[], $7::text[], $8::float8[],
  $9::boolean)
