-- How many letters there are, up to $8: see the function dead_letters_page for $1 to $7.
-- Index: as the function says. No locks. Safe to repeat.
select count(*)
from {schema}.dead_letters_page(
  $1::uuid[], $2::text, $3::text, $4::text, $5::timestamptz, $6::timestamptz, $7::boolean,
  null, null, false, $8::int) as d
