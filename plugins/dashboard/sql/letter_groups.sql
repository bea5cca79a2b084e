-- Dead letters by fingerprint: those with the most waiting for a replay first, up to $1 groups. Each
-- with its newest one, the number of waiting and replayed ones among the newest $2, and how many of
-- the last day there are by hour, 0 being the current one, as JSON.
-- Index: dead_letters_fingerprint, by a loose scan; index-only where the rows are vacuumed. No locks.
-- Safe to repeat.
with recursive marks (fingerprint, place) as (
  (
    select d.fingerprint, 1
    from {schema}.dead_letters as d
    order by d.fingerprint
    limit 1)
  union all
  select (
    select d.fingerprint
    from {schema}.dead_letters as d
    where d.fingerprint > m.fingerprint
    order by d.fingerprint
    limit 1), m.place + 1
  from marks as m
  where m.fingerprint is not null and m.place < $1::int)
select
  m.fingerprint, n.queue, n.func, n.reason, n.error, n.message, c.waiting, c.replayed,
  {schema}.utc(n.died_at), c.hours
from marks as m
cross join (
  select array(
    select now() - h * interval '1 hour' from generate_series(24, 1, -1) as h) as starts) as t
cross join lateral (
  select
    d.queue, d.func, d.reason, d.error, d.died_at,
    left(d.errors -> -1 ->> 'message', 300) as message
  from {schema}.dead_letters as d
  where d.fingerprint = m.fingerprint
  order by d.died_at desc, d.id desc
  limit 1) as n
cross join lateral (
  select
    sum(h.waiting)::int as waiting, sum(h.replayed)::int as replayed,
    (json_object_agg(h.hour, h.waiting + h.replayed) filter (where h.hour < 24))::text as hours
  from (
    select
      greatest(24 - width_bucket(s.died_at, t.starts), 0) as hour,
      count(*) filter (where s.replayed_at is null) as waiting,
      count(s.replayed_at) as replayed
    from (
      select d.died_at, d.replayed_at
      from {schema}.dead_letters as d
      where d.fingerprint = m.fingerprint
      order by d.died_at desc, d.id desc
      limit $2::int) as s
    group by 1) as h) as c
order by c.waiting desc, n.died_at desc
