-- Leases up to $1 jobs of the outbox for $2 seconds, oldest first, except those leased already.
-- Index: the primary key. Locks: the rows by position, skipping those that another relay locks.
-- Not safe to repeat: leased jobs are returned again only after $2 seconds.
update {schema}.redis_outbox as o
set taken_until = clock_timestamp() + $2::float8 * interval '1 second'
from (
  select pos
  from {schema}.redis_outbox
  where taken_until is null
    or taken_until < clock_timestamp()
  order by pos
  limit $1::int
  for update skip locked) as c
where o.pos = c.pos
returning o.pos, o.id, o.queue, o.priority, o.func, o.arguments::text,
  extract(epoch from o.run_at)::float8, o.max_attempts, o.meta::text, o.limits::text, o.rule::text
