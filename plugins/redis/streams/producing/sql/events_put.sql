-- Writes events to the outbox in order and wakes a relay with one notification per transaction.
-- $1 prefix, $2 stream, $3 its declaration, and for each row: $4 ids, $5 partitions, $6 events,
-- $7 widths, $8 data. Index: none. Locks: only the inserted rows. Not safe to repeat: events are
-- sent twice.
with put as (
  insert into {schema}.redis_events (prefix, id, stream, partition, about, events, width, data)
  select $1::text, u.id, $2::text, u.partition, $3::text::jsonb, u.events, u.width, u.data
  from unnest(
    $4::uuid[], $5::int[], $6::int[], $7::int[], $8::text[]::bytea[]
  ) with ordinality as u (id, partition, events, width, data, n)
  order by u.n
  returning 1)
select pg_notify({schema}.channel() || '_r', 'w:')
where exists (select from put)
