-- Deletes rows $3 of the event outbox of the prefix $1, by position, after they were appended to
-- Redis, if the relay $2 still holds the lease; returns the deleted positions. Index: the primary
-- keys. Locks: the lease, then the rows. Safe to repeat.
with mine as materialized (
  select 1
  from {schema}.redis_turns
  where prefix = $1::text
    and holder = $2::uuid
    and until > clock_timestamp()
  for update)
delete from {schema}.redis_events
where prefix = $1::text
  and pos = any($3::bigint[])
  and exists (select from mine)
returning pos
