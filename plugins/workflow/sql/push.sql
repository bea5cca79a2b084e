-- Stores a workflow and starts the steps that wait for no other; see the function.
-- Index: the primary keys. Locks: what it inserts. Safe to repeat.
select {schema}.workflows_push(
  $1::uuid, $2::text, $3::int, $4::text::text[], $5::text::text[], $6::text::int[], $7::uuid[],
  $8::text[], $9::smallint[], $10::text[], $11::text, $12::text[], $13::timestamptz[], $14::float8[], $15::int[],
  $16::text[], $17::text[], $18::smallint[], $19::text[], $20::text::text[])
