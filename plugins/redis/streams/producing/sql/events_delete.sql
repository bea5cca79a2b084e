-- Deletes rows $3 of the event outbox of the prefix $1, by position, after they were appended to
-- Redis, if the relay $2 still holds the lease; returns the deleted positions. Rows that another
-- transaction has locked stay, and are taken again. Index: the primary keys. Locks: the lease, then
-- the rows, skipping locked ones. Safe to repeat.
with mine as materialized (
  select 1
  from {schema}.redis_turns
  where prefix = $1::text
    and holder = $2::uuid
    and until > clock_timestamp()
  for update)
delete from {schema}.redis_events
where prefix = $1::text
  and pos = any(array(
    select pos
    from {schema}.redis_events
    where prefix = $1::text
      and pos = any($3::bigint[])
      and exists (select from mine)
    for update skip locked))
returning pos
