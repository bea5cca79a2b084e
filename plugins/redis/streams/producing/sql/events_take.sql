-- Takes or extends the lease of the relay $2 of the prefix $1 for $3 seconds and returns up to $4
-- rows of its event outbox and $5 bytes, at least one row, oldest first; none while another relay
-- holds the lease. The partitions $6, written as stream/number, are excluded: if there are any, each
-- other partition gets its share of the rows, so that the backlog of the excluded ones is not read.
-- Rows that another transaction has locked are skipped together with the later rows of their
-- partition, and each is reported by a row without a position.
-- Indexes: the primary keys, and redis_events_place. Locks: the lease, then the rows, skipping locked
-- ones, so that a row deleted meanwhile is not returned. Safe to repeat.
with recursive mine as (
  insert into {schema}.redis_turns as t (prefix, holder, term, until)
  select $1::text, $2::uuid, 1, clock_timestamp() + $3::float8 * interval '1 second'
  where (select h.pos from {schema}.redis_events as h
         where h.prefix = $1::text
         order by h.pos limit 1) is not null
  on conflict (prefix) do update
  set holder = excluded.holder, until = excluded.until,
    term = t.term + case when t.holder = excluded.holder then 0 else 1 end
  where t.holder = excluded.holder
    or t.until < clock_timestamp()
  returning t.term),
places as (
  (select h.stream, h.partition from {schema}.redis_events as h
   where h.prefix = $1::text and cardinality($6::text[]) > 0
   order by h.stream, h.partition limit 1)
  union all
  select n.stream, n.partition
  from places as p
  cross join lateral (
    select h.stream, h.partition
    from {schema}.redis_events as h
    where h.prefix = $1::text and (h.stream, h.partition) > (p.stream, p.partition)
    order by h.stream, h.partition limit 1) as n),
free as (
  select p.stream, p.partition, greatest(1, $4::int / count(*) over ()) as most
  from places as p
  where p.stream || '/' || p.partition <> all($6::text[])),
chosen as materialized (
  (select h.pos, h.stream, h.partition from {schema}.redis_events as h
   where h.prefix = $1::text and cardinality($6::text[]) = 0
   order by h.pos limit $4::int)
  union all
  (select c.pos, f.stream, f.partition
   from free as f
   cross join lateral (
     select h.pos from {schema}.redis_events as h
     where h.prefix = $1::text and h.stream = f.stream and h.partition = f.partition
     order by h.pos limit f.most) as c
   order by c.pos limit $4::int)),
ours as materialized (
  select h.pos, h.id, h.stream, h.partition, h.about, h.events, h.width, h.data
  from {schema}.redis_events as h
  where exists (select from mine) and h.prefix = $1::text
    and h.pos = any(array(select c.pos from chosen as c))
  for update of h skip locked),
locked as materialized (
  select c.pos, c.stream, c.partition from chosen as c
  where c.pos <> all(array(select o.pos from ours as o)))
select o.pos, o.id, o.stream, o.partition, o.about::text, o.events, o.width, o.data, m.term
from (
  select e.*, sum(octet_length(e.data)) over (order by e.pos) - octet_length(e.data) as before
  from ours as e
  where e.pos < all(select l.pos from locked as l
                    where l.stream = e.stream and l.partition = e.partition)) as o, mine as m
where o.before < $5::bigint
union all
select null, null, l.stream, l.partition, null, null, null, null, m.term
from locked as l, mine as m
