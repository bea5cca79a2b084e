-- Deletes rows $2 of the outbox of events, by position, which are in Redis, if the relay $1 still
-- has the turn; gives those that went. Index: the primary keys. Locks: the turn, then the rows.
-- Safe to repeat.
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
