-- Dead letters after $1, $2 by their primary key: at most $3, and about $4 bytes of them. The
-- payloads are null if none of them is encrypted.
-- Index: the primary key. No locks. Safe to repeat.
with page as materialized (
  select
    t.id as id, '' as name, t.arguments, t.errors, t.meta,
    coalesce(pg_column_size(t.arguments), 0)
      + coalesce(pg_column_size(t.errors), 0)
      + coalesce(pg_column_size(t.meta), 0) as size
  from {schema}.dead_letters as t
  where t.id > $1::uuid and $2::text is not null
  order by t.id
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
      'arguments', s.arguments,
      'errors', s.errors,
      'steps', s.meta -> 'steps') as payloads
  from summed as s
  where s.before < $4::bigint)
select
  b.id, b.name,
  case when strpos(b.payloads::text, '"$chancy"') > 0 then b.payloads::text end
from bounded as b
order by b.id, b.name
