-- Adds steps to a running workflow from one of its steps; see the function.
-- Index: the primary keys. Locks: the row of the job, the workflow, connected steps and joins.
-- Not to be repeated: the names are taken then.
select {schema}.workflows_extend(
  $1::uuid, $2::text, $3::int, $4::uuid, $5::uuid, $6::int, $7::text[], $8::text[], $9::text[],
  $10::text[], $11::text::text[], $12::text::text[], $13::text::text[], $14::text::int[],
  $15::uuid[], $16::text[], $17::smallint[], $18::text[], $19::text, $20::text[],
  $21::timestamptz[], $22::float8[], $23::int[], $24::text[], $25::text[], $26::smallint[],
  $27::text[], $28::text::text[])
