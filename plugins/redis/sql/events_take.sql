-- Takes or keeps the turn of the relay $1 for $2 seconds, and gives up to $3 rows of the outbox of
-- events and $4 bytes, one row at least, oldest first; none while another has the turn. Left out
-- are the partitions $5, written as stream/number. Index: the primary keys. Locks: the turn, then
-- the rows by position, so that one that is deleted meanwhile is not given. Safe to repeat.
with mine as (
  insert into {schema}.redis_turns as t (name, holder, term, until)
  select 'events', $1::uuid, 1, clock_timestamp() + $2::float8 * interval '1 second'
  where (select h.pos from {schema}.redis_events as h order by h.pos limit 1) is not null
  on conflict (name) do update
  set holder = excluded.holder, until = excluded.until,
    term = t.term + case when t.holder = excluded.holder then 0 else 1 end
  where t.holder = excluded.holder
    or t.until < clock_timestamp()
  returning t.term),
oldest as materialized (
  select h.pos, h.id, h.stream, h.partition, h.about, h.events, h.width, h.data
  from {schema}.redis_events as h
  where exists (select from mine)
    and h.stream || '/' || h.partition <> all($5::text[])
  order by h.pos
  limit $3::int
  for update of h)
select o.pos, o.id, o.stream, o.partition, o.about::text, o.events, o.width, o.data, m.term
from (
  select e.*, sum(octet_length(e.data)) over (order by e.pos) - octet_length(e.data) as before
  from oldest as e) as o, mine as m
where o.before < $4::bigint
order by o.pos
