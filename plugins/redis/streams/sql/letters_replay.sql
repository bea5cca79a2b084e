-- Sends the events of dead letters again, through the outbox, and marks the dead letters as
-- replayed, all or nothing; the functions are supplied by the plugin of dead letters. $1, $2: ids of
-- dead letters, and the ids of their rows in the outbox. $3: also those that were replayed before.
-- $4: the declarations of streams by name, an object; $5: the prefix of the application. Dead letters
-- of other streams and prefixes are unchanged. Returns the ids of dead letters and rows.
-- Index: the primary keys. Locks: the dead letters by id. Safe to repeat with the same $2: the same
-- result is returned again.
with found as materialized (
  select e.id, e.queue, e.event, e.replay, e.place, e.done
  from {schema}.events_to_replay($1::uuid[], $2::uuid[], $3::boolean) as e),
chosen as materialized (
  select f.*, s.value as about
  from found as f
  join jsonb_each($4::text::jsonb) as s (name, value) on s.name = f.queue
  where not f.done
    and f.event ->> 'prefix' = $5::text
    and (f.event -> 'partition')::int < (s.value -> 'partitions')::int),
sent as (
  insert into {schema}.redis_events (prefix, id, stream, partition, about, events, width, data)
  select
    $5::text, c.replay, c.queue, (c.event -> 'partition')::int, c.about, 1, (c.event -> 'width')::int,
    decode(c.event ->> 'data', 'base64')
  from chosen as c
  order by c.place
  returning id),
marked as materialized (
  select m.id
  from {schema}.mark_replayed(
    array(select c.id from chosen as c order by c.id),
    array(select c.replay from chosen as c order by c.id)) as m (id))
select c.id, c.replay, w.woken
from chosen as c
join marked as m on m.id = c.id
cross join (
  select count(pg_notify({schema}.channel() || '_r', 'w:')) as woken
  from (select from sent limit 1) as s) as w
union all
select f.id, f.replay, 0
from found as f
where f.done
