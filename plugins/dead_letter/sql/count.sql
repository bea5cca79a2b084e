-- The number of matching dead letters, up to $9; for $1 to $8 see the function
-- dead_letters_page. Index: see the function. No locks. Safe to repeat.
select count(*)
from {schema}.dead_letters_page(
  $1::uuid[], $2::text, $3::text, $4::text, $5::timestamptz, $6::timestamptz, $7::boolean, $8::jsonb,
  null, null, false, $9::int) as d
