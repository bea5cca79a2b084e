-- Stores outcomes of steps and starts the steps they enable, at most $10 of them; returns the number
-- of pieces left; see the function. A session that hangs before the end of the transaction, which is
-- never a caller's, holds its locks for 10 s at most; $11: how long it waits for a lock at most.
-- $1, $3 and $5 have one element if all values are equal.
-- Index: the primary keys. Locks: workflows by id, steps and joins by workflow and name.
-- Safe to repeat.
select
  set_config('idle_in_transaction_session_timeout', '10s', true)
    || set_config('lock_timeout', coalesce($11::text, current_setting('lock_timeout')), true),
  {schema}.workflows_advance(
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
