-- Ids and deaths of letters, at most $10 of them, oldest first: see the function
-- dead_letters_page for $1 to $9. Index: as the function says. No locks. Safe to repeat.
select d.id, {schema}.utc(d.died_at)
from {schema}.dead_letters_page(
  $1::uuid[], $2::text, $3::text, $4::text, $5::timestamptz, $6::timestamptz, $7::boolean,
  $8::timestamptz, $9::uuid, false, $10::int) as d
