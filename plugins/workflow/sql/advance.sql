-- Takes the ends of steps, and starts what they let go on; see the function. Who is cut off or frozen before
-- the end of the transaction, which is never one of a caller's, holds the locks for 10 s at most.
-- Index: the primary keys. Locks: workflows by id, steps and joins by workflow and name.
-- Safe to repeat.
select set_config('idle_in_transaction_session_timeout', '10s', true), {schema}.workflows_advance(
  $1::uuid[], $2::text[], $3::int[], $4::uuid[], $5::smallint[], $6::text[], $7::text[], $8::float8[],
  $9::boolean)
