-- Takes or extends the lease of the relay $2 of the prefix $1 for $3 seconds and returns up to $4
-- rows of its event outbox and $5 bytes, at least one row, oldest first; none while another relay
-- holds the lease. The partitions $6, written as stream/number, are excluded: if there are any, each
-- other partition gets its share of the rows, so that the backlog of the excluded ones is not read.
-- Indexes: the primary keys, and redis_events_place. Locks: the lease, then the rows by position, so
-- that a row deleted meanwhile is not returned. Safe to repeat.
with recursive mine as (
  insert into {schema}.redis_turns as t (prefix, holder, term, until)
  select $1::text, $2::uuid, 1, clock_timestamp() + $3::float8 * interval '1 second'
  where (select h.pos from {schema}.redis_events as h
         where h.prefix = $1::text
         order by h.pos
         limit 1) is not null
  on conflict (prefix) do update
  set holder = excluded.holder, until = excluded.until,
    term = t.term + case when t.holder = excluded.holder then 0 else 1 end
  where t.holder = excluded.holder
    or t.until < clock_timestamp()
  returning t.term),
places as (
  (select h.stream, h.partition from {schema}.redis_events as h
   where h.prefix = $1::text and cardinality($6::text[]) > 0
   order by h.stream, h.partition
   limit 1)
  union all
  select n.stream, n.partition
  from places as p
  cross join lateral (
    select h.stream, h.partition
    from {schema}.redis_events as h
    where h.prefix = $1::text and (h.stream, h.partition) > (p.stream, p.partition)
    order by h.stream, h.partition
    limit 1) as n),
free as (
  select p.stream, p.partition, greatest(1, $4::int / count(*) over ()) as most
  from places as p
  where p.stream || '/' || p.partition <> all($6::text[])),
chosen as (
  (select h.pos from {schema}.redis_events as h
   where h.prefix = $1::text and cardinality($6::text[]) = 0
   order by h.pos
   limit $4::int)
  union all
  select c.pos
  from free as f
  cross join lateral (
    select h.pos from {schema}.redis_events as h
    where h.prefix = $1::text and h.stream = f.stream and h.partition = f.partition
    order by h.pos limit f.most) as c),
oldest as materialized (
  select h.pos, h.id, h.stream, h.partition, h.about, h.events, h.width, h.data
  from {schema}.redis_events as h
  where exists (select from mine) and h.prefix = $1::text
    and h.pos = any(array(select c.pos from chosen as c))
  order by h.pos
  limit $4::int
  for update of h)
select o.pos, o.id, o.stream, o.partition, o.about::text, o.events, o.width, o.data, m.term
from (
  select e.*, sum(octet_length(e.data)) over (order by e.pos) - octet_length(e.data) as before
  from oldest as e) as o, mine as m
where o.before < $5::bigint
order by o.pos
