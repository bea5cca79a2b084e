-- Ids and times of death of matching dead letters, oldest first, at most $12; for $1 to $11 see the
-- function dead_letters_page. None after $13 bytes of arguments and meta, as stored; null: no bound.
-- Index: see the function. No locks. Safe to repeat.
select p.id, {schema}.utc(p.died_at)
from (
  select
    d.id, d.died_at,
    sum(coalesce(pg_column_size(d.arguments), 0) + coalesce(pg_column_size(d.meta), 0)) over (
      rows between unbounded preceding and 1 preceding) as bytes_before
  from {schema}.dead_letters_page(
    $1::uuid[], $2::text, $3::text, $4::text, $5::timestamptz, $6::timestamptz, $7::boolean,
    $8::jsonb, $9::text, $10::timestamptz, $11::uuid, false, $12::int) as d) as p
where $13::bigint is null
  or coalesce(p.bytes_before, 0) < $13::bigint
