-- Callbacks of batches after $1, $2 by their primary key: at most $3, and about $4 bytes of them. The
-- payloads are null if none of them is encrypted.
-- Index: the primary key. No locks. Safe to repeat.
with page as materialized (
  select
    t.batch_id as id, t.kind::text as name, t.arguments,
    coalesce(pg_column_size(t.arguments), 0) as size
  from {schema}.batches_callbacks as t
  where (t.batch_id, t.kind) > ($1::uuid, coalesce(nullif($2::text, ''), '0')::smallint)
  order by t.batch_id, t.kind
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
