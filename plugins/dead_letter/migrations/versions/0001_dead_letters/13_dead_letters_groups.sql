-- Returns up to p_limit groups of dead letters with the same fingerprint, the one with the latest
-- death first, after (p_at, p_id); of the first p_marks fingerprints. Each with what its newest
-- one is, the numbers of waiting and replayed ones among the newest p_counted,
-- and how many of the last day there are by hour, 0 being the current one, as JSON.
-- Index: dead_letters_fingerprint, by a loose scan; index-only where the rows are vacuumed. The plan
-- is pinned: before an analyze, the planner prefers to sort the whole table for each step of the
-- scan. No locks. Safe to repeat.
create function {schema}.dead_letters_groups(
  p_marks int, p_counted int, p_at timestamptz, p_id uuid, p_limit int
)
returns table (
  fingerprint text, queue text, func text, reason text, error text, message text, waiting int,
  replayed int, died_at timestamptz, id uuid, hours text
)
language sql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
  with recursive marks (fingerprint, died_at, id, place) as (
    (
      select d.fingerprint, d.died_at, d.id, 1
      from {schema}.dead_letters d
      order by d.fingerprint desc, d.died_at desc, d.id desc limit 1)
    union all
    select n.fingerprint, n.died_at, n.id, m.place + 1
    from marks m cross join lateral (
      select d.fingerprint, d.died_at, d.id
      from {schema}.dead_letters d
      where d.fingerprint < m.fingerprint
      order by d.fingerprint desc, d.died_at desc, d.id desc limit 1) n
    where m.place < p_marks),
  shown as (
    select m.fingerprint, m.died_at, m.id
    from marks m
    where p_at is null or (m.died_at, m.id) < (p_at, p_id)
    order by m.died_at desc, m.id desc limit p_limit)
  select
    s.fingerprint, d.queue, d.func, d.reason, d.error, left(d.errors -> -1 ->> 'message', 300),
    c.waiting, c.replayed, s.died_at, s.id, c.hours
  from shown s
  join {schema}.dead_letters d on d.id = s.id
  cross join lateral (
    select
      sum(h.waiting)::int as waiting, sum(h.replayed)::int as replayed,
      (json_object_agg(h.hour, h.waiting + h.replayed) filter (where h.hour < 24))::text as hours
    from (
      select
        greatest(floor(extract(epoch from now() - o.died_at) / 3600), 0)::int as hour,
        count(*) filter (where o.replayed_at is null) as waiting,
        count(o.replayed_at) as replayed
      from (
        select d.died_at, d.replayed_at
        from {schema}.dead_letters d
        where d.fingerprint = s.fingerprint
        order by d.died_at desc, d.id desc limit p_counted) o
      group by 1) h) c
  order by s.died_at desc, s.id desc
$$
