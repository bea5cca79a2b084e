-- Stores jobs in order, some of them with unique keys; see the function. Index: the primary key of
-- jobs, jobs_unique, the primary key of unique_periods. Locks: by key. Safe to repeat while the
-- jobs are unfinished. $11: keys as text, as not every driver supports lists of bytes.
select id, stored, refused
from {schema}.push_unique(
  $1::uuid[], $2::text[], $3::smallint[], $4::text[], $5::text[], $6::timestamptz[], $7::float8[],
  $8::int[], $9::text[], $10::text[], $11::text[]::bytea[], $12::text[], $13::boolean[], $14::float8[],
  $15::float8[], $16::timestamptz[], $17::float8[], $18::boolean)
