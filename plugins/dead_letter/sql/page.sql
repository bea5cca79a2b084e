-- Ids and times of death of matching dead letters, oldest first, at most $12; for $1 to $11 see the
-- function dead_letters_page. Index: see the function. No locks. Safe to repeat.
select d.id, {schema}.utc(d.died_at)
from {schema}.dead_letters_page(
  $1::uuid[], $2::text, $3::text, $4::text, $5::timestamptz, $6::timestamptz, $7::boolean, $8::jsonb,
  $9::text, $10::timestamptz, $11::uuid, false, $12::int) as d
