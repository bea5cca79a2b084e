-- The number of matching dead letters, up to $8; for $1 to $7 see the function
-- dead_letters_page. Index: see the function. No locks. Safe to repeat.
select count(*)
from {schema}.dead_letters_page(
  $1::uuid[], $2::text, $3::text, $4::text, $5::timestamptz, $6::timestamptz, $7::boolean,
  null, null, false, $8::int) as d
