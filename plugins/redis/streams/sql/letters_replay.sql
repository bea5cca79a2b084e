-- Sends the events of dead letters again, through the outbox, and marks the dead letters as
-- replayed, all or nothing. $1, $2: ids of dead letters, and the ids of their rows in the outbox.
-- $3: also those that were replayed before. $4: the declarations of streams by name, an object; dead
-- letters of others are unchanged. Returns the ids of dead letters and rows.
-- Index: the primary keys. Locks: the dead letters by id. Safe to repeat with the same $2: the same
-- result is returned again.
with chosen as materialized (
  select d.id, d.queue, d.meta -> 'event' as event, n.row_id, n.place, s.value as about
  from {schema}.dead_letters as d
  join unnest($1::uuid[], $2::uuid[]) with ordinality as n (id, row_id, place) on n.id = d.id
  join jsonb_each($4::text::jsonb) as s (name, value) on s.name = d.queue
  where d.reason = 'event'
    and (d.replayed_at is null or $3::boolean)
    and d.replayed_as is distinct from n.row_id
    and (d.meta -> 'event' -> 'partition')::int < (s.value -> 'partitions')::int
  order by d.id
  for update of d),
sent as (
  insert into {schema}.redis_events (id, stream, partition, about, events, width, data)
  select
    c.row_id, c.queue, (c.event -> 'partition')::int, c.about, 1, (c.event -> 'width')::int,
    decode(c.event ->> 'data', 'base64')
  from chosen as c
  order by c.place
  returning id),
marked as (
  update {schema}.dead_letters as d
  set replayed_at = clock_timestamp(), replayed_as = c.row_id, replays = d.replays + 1
  from chosen as c
  where d.id = c.id
  returning d.id, d.replayed_as)
select m.id, m.replayed_as, w.woken
from marked as m
cross join (
  select count(pg_notify({schema}.channel() || '_r', 'w:')) as woken
  from (select from sent limit 1) as s) as w
union all
select d.id, d.replayed_as, 0
from {schema}.dead_letters as d
join unnest($1::uuid[], $2::uuid[]) as n (id, row_id) on n.id = d.id and n.row_id = d.replayed_as
