-- Takes or extends the lease of the relay $1 for $2 seconds and returns up to $3 rows of the event
-- outbox and $4 bytes, at least one row, oldest first; none while another relay holds the lease.
-- The partitions $5, written as stream/number, are excluded: if there are any, each other partition
-- gets its share of the rows, so that the backlog of the excluded ones is not read. Indexes: the
-- primary keys, and redis_events_place. Locks: the lease, then the rows by position, so that a row
-- deleted meanwhile is not returned. Safe to repeat.
with recursive mine as (
  insert into {schema}.redis_turns as t (name, holder, term, until)
  select 'events', $1::uuid, 1, clock_timestamp() + $2::float8 * interval '1 second'
  where (select h.pos from {schema}.redis_events as h order by h.pos limit 1) is not null
  on conflict (name) do update
  set holder = excluded.holder, until = excluded.until,
    term = t.term + case when t.holder = excluded.holder then 0 else 1 end
  where t.holder = excluded.holder
    or t.until < clock_timestamp()
  returning t.term),
places as (
  (select h.stream, h.partition from {schema}.redis_events as h
   where cardinality($5::text[]) > 0
   order by h.stream, h.partition
   limit 1)
  union all
  select n.stream, n.partition
  from places as p
  cross join lateral (
    select h.stream, h.partition
    from {schema}.redis_events as h
    where (h.stream, h.partition) > (p.stream, p.partition)
    order by h.stream, h.partition
    limit 1) as n),
free as (
  select p.stream, p.partition, greatest(1, $3::int / count(*) over ()) as most
  from places as p
  where p.stream || '/' || p.partition <> all($5::text[])),
chosen as (
  (select h.pos from {schema}.redis_events as h
   where cardinality($5::text[]) = 0
   order by h.pos
   limit $3::int)
  union all
  select c.pos
  from free as f
  cross join lateral (
    select h.pos from {schema}.redis_events as h
    where h.stream = f.stream and h.partition = f.partition
    order by h.pos limit f.most) as c),
oldest as materialized (
  select h.pos, h.id, h.stream, h.partition, h.about, h.events, h.width, h.data
  from {schema}.redis_events as h
  where exists (select from mine) and h.pos = any(array(select c.pos from chosen as c))
  order by h.pos
  limit $3::int
  for update of h)
select o.pos, o.id, o.stream, o.partition, o.about::text, o.events, o.width, o.data, m.term
from (
  select e.*, sum(octet_length(e.data)) over (order by e.pos) - octet_length(e.data) as before
  from oldest as e) as o, mine as m
where o.before < $4::bigint
order by o.pos
