-- The ids, times of death and queues of dead letters of a fingerprint ($1) after ($2, $3) and up to
-- the time $4, the oldest first, at most $5; without those that were replayed if $6. Index:
-- dead_letters_fingerprint. No locks. Safe to repeat.
select d.id, {schema}.utc(d.died_at), d.queue
from {schema}.dead_letters as d
where d.fingerprint = $1::text
  and (d.died_at, d.id) > ($2::timestamptz, $3::uuid)
  and d.died_at <= $4::timestamptz
  and (d.replayed_at is null or not $6::boolean)
order by d.died_at, d.id
limit $5::int
