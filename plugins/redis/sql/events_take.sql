-- Takes or keeps the turn of the relay $1 for $2 seconds, and gives up to $3 rows of the outbox of
-- events and $4 bytes, one row at least, oldest first; none while another has the turn. Left out
-- are the partitions $6 of the streams $5. Index: the primary keys. Locks: the turn, then the rows
-- by position, so that one that is deleted meanwhile is not given. Safe to repeat.
with mine as (
  insert into {schema}.redis_turns as t (name, holder, term, until)
  select 'events', $1::uuid, 1, clock_timestamp() + $2::float8 * interval '1 second'
  where exists (select from {schema}.redis_events)
  on conflict (name) do update
  set holder = excluded.holder, until = excluded.until,
    term = t.term + case when t.holder = excluded.holder then 0 else 1 end
  where t.holder = excluded.holder
    or t.until < clock_timestamp()
  returning t.term)
select e.pos, e.id, e.stream, e.partition, e.about::text, e.events, e.width, e.data, m.term
from {schema}.redis_events as e, mine as m
where e.pos in (
  select f.pos
  from (
    select g.pos, sum(g.bytes) over (order by g.pos) - g.bytes as before
    from (
      select h.pos, octet_length(h.data) as bytes
      from {schema}.redis_events as h
      where not exists (
        select
        from unnest($5::text[], $6::int[]) as s (stream, partition)
        where s.stream = h.stream
          and s.partition = h.partition)
      order by h.pos
      limit $3::int) as g) as f
  where f.before < $4::bigint)
order by e.pos
for update of e
