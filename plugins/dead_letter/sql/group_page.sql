-- Dead letters of a fingerprint ($1) that died before ($2, $3), the newest first, at most $4. Index:
-- dead_letters_fingerprint, backwards. No locks. Safe to repeat.
select
  d.id, d.queue, d.func, d.attempt, {schema}.utc(d.died_at), {schema}.utc(d.replayed_at),
  d.replayed_as, d.host, left(d.errors -> -1 ->> 'message', 300),
  case when pg_column_size(d.arguments) <= 1000 then d.arguments::text end
from {schema}.dead_letters as d
where d.fingerprint = $1::text
  and (d.died_at, d.id) < ($2::timestamptz, $3::uuid)
order by d.died_at desc, d.id desc
limit $4::int
