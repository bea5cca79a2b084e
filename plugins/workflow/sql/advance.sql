-- Takes the ends of steps, and starts what they let go on, $10 of it at most; gives how many pieces are
-- left; see the function. Who is cut off or frozen before the end of the transaction, which is never one of
-- a caller's, holds the locks for 10 s at most.
-- $1, $3 and $5 have one element where it is that of all.
-- Index: the primary keys. Locks: workflows by id, steps and joins by workflow and name.
-- Safe to repeat.
select set_config('idle_in_transaction_session_timeout', '10s', true), {schema}.workflows_advance(
  case when cardinality($1::uuid[]) = 1 then array_fill(($1::uuid[])[1], array[cardinality($2::text[])])
    else $1::uuid[] end,
  $2::text[],
  case when cardinality($3::int[]) = 1 then array_fill(($3::int[])[1], array[cardinality($2::text[])])
    else $3::int[] end,
  $4::uuid[],
  case when cardinality($5::smallint[]) = 1
    then array_fill(($5::smallint[])[1], array[cardinality($2::text[])])
    else $5::smallint[] end,
  $6::text[], $7::text[], $8::float8[], $9::boolean, $10::int)
