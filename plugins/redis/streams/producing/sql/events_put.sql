-- Writes events to the outbox in order and wakes a relay with one notification per transaction.
-- $1 stream, $2 its declaration, and for each row: $3 ids, $4 partitions, $5 events, $6 widths,
-- $7 data. Index: none. Locks: only the inserted rows. Not safe to repeat: events are sent twice.
with put as (
  insert into {schema}.redis_events (id, stream, partition, about, events, width, data)
  select u.id, $1::text, u.partition, $2::text::jsonb, u.events, u.width, u.data
  from unnest(
    $3::uuid[], $4::int[], $5::int[], $6::int[], $7::text[]::bytea[]
  ) with ordinality as u (id, partition, events, width, data, n)
  order by u.n
  returning 1)
select pg_notify({schema}.channel() || '_r', 'w:')
where exists (select from put)
