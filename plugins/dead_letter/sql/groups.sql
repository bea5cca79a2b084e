-- Groups of dead letters, the one with the latest death first: see the function dead_letters_groups,
-- whose parameters are $1 to $5. No locks. Safe to repeat.
select
  g.fingerprint, g.queue, g.func, g.reason, g.error, g.message, g.waiting, g.replayed,
  {schema}.utc(g.died_at), g.id, g.hours
from {schema}.dead_letters_groups(
  $1::int, $2::int, $3::timestamptz, $4::uuid, $5::int) with ordinality as g (
    fingerprint, queue, func, reason, error, message, waiting, replayed, died_at, id, hours, place)
order by g.place
