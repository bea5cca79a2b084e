-- Stores a batch with its callbacks; see the function. Index: the primary keys.
-- Locks: what it inserts. Safe to repeat.
select {schema}.batches_begin(
  $1::uuid, $2::text, $3::boolean, $4::smallint[], $5::uuid[], $6::text[], $7::smallint[], $8::text[],
  $9::text[], $10::timestamptz[], $11::float8[], $12::int[], $13::text[], $14::text[],
  $15::timestamptz[], $16::float8[])
