-- Deletes rows $2 of the event outbox, by position, after they were appended to Redis, if the relay
-- $1 still holds the lease; returns the deleted positions. Index: the primary keys. Locks: the
-- lease, then the rows. Safe to repeat.
with mine as materialized (
  select 1
  from {schema}.redis_turns
  where name = 'events'
    and holder = $1::uuid
    and until > clock_timestamp()
  for update)
delete from {schema}.redis_events
where pos = any($2::bigint[])
  and exists (select from mine)
returning pos
