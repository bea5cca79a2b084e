-- Finds unfinished jobs by conditions; see the function. Index: the primary key of jobs. No locks.
-- Safe to repeat.
select ids, reached
from {schema}.matching_jobs(
  $1::uuid, $2::uuid, $3::smallint[], $4::text, $5::text, $6::timestamptz, $7::timestamptz,
  $8::jsonb, $9::text, $10::int, $11::int)
