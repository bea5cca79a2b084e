-- Entries of cron after $1, $2 by their primary key: at most $3, and about $4 bytes of them. The
-- payloads are null if none of them is encrypted.
-- Index: the primary key. No locks. Safe to repeat.
with page as materialized (
  select
    '00000000-0000-0000-0000-000000000000'::uuid as id, t.name as name, t.arguments,
    coalesce(pg_column_size(t.arguments), 0) as size
  from {schema}.cron_entries as t
  where $1::uuid is not null and t.name > $2::text
  order by t.name
  limit $3::int),
summed as (
  select
    p.*,
    sum(p.size) over (order by p.id, p.name rows unbounded preceding) - p.size as before
  from page as p),
bounded as (
  select
    s.id, s.name,
    jsonb_build_object(
      'arguments', s.arguments) as payloads
  from summed as s
  where s.before < $4::bigint)
select
  b.id, b.name,
  case when strpos(b.payloads::text, '"$chancy"') > 0 then b.payloads::text end
from bounded as b
order by b.id, b.name
