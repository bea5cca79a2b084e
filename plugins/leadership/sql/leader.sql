-- Whether a worker that beats has been there for $1 seconds, and the lease with its holder, its term
-- and the seconds that are left. Index: the primary key of leadership_leases; scans the workers. No
-- locks. Safe to repeat.
select
  exists (
    select from {schema}.workers as w
    where w.beat_at > clock_timestamp() - interval '15 s'
      and w.started_at < clock_timestamp() - $1::float8 * interval '1 s'),
  l.holder,
  l.term,
  extract(epoch from l.expires_at - clock_timestamp())::float8
from (select) as one
left join {schema}.leadership_leases as l on l.name = 'leader'
