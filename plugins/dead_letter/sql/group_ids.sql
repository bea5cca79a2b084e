-- The ids, times of death and queues of dead letters of a fingerprint ($1) after ($2, $3) and up to
-- the time $4, the oldest first, at most $5; without those that were replayed if $6. None after $7
-- bytes of arguments and meta, as stored; null: no bound. Index: dead_letters_fingerprint. No locks.
-- Safe to repeat.
select p.id, {schema}.utc(p.died_at), p.queue
from (
  select
    o.id, o.died_at, o.queue,
    sum(coalesce(pg_column_size(o.arguments), 0) + coalesce(pg_column_size(o.meta), 0)) over (
      order by o.died_at, o.id rows between unbounded preceding and 1 preceding) as bytes_before
  from (
    select d.id, d.died_at, d.queue, d.arguments, d.meta
    from {schema}.dead_letters as d
    where d.fingerprint = $1::text
      and (d.died_at, d.id) > ($2::timestamptz, $3::uuid)
      and d.died_at <= $4::timestamptz
      and (d.replayed_at is null or not $6::boolean)
    order by d.died_at, d.id
    limit $5::int) as o) as p
where $7::bigint is null
  or coalesce(p.bytes_before, 0) < $7::bigint
order by p.died_at, p.id
