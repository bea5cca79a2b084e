-- The number of matching dead letters, up to $10; for $1 to $9 see the function
-- dead_letters_page. Index: see the function. No locks. Safe to repeat.
select count(*)
from {schema}.dead_letters_page(
  $1::uuid[], $2::text, $3::text, $4::text, $5::timestamptz, $6::timestamptz, $7::boolean, $8::jsonb,
  $9::text, null, null, false, $10::int) as d
