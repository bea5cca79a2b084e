-- Stores a workflow and starts the steps that wait for no other; see the function.
-- Index: the primary keys. Locks: what it inserts. Safe to repeat.
select {schema}.workflows_push(
  $1::uuid, $2::text, $3::int, $4::text::text[], $5::text::text[], $6::text::text[],
  $7::text::int[], $8::uuid[], $9::text[], $10::smallint[], $11::text[], $12::text, $13::text[],
  $14::timestamptz[], $15::float8[], $16::int[], $17::text[], $18::text[], $19::smallint[],
  $20::text[], $21::text::text[])
