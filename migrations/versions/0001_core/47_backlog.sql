-- Queues with due jobs that no worker has claimed, the one with the longest wait first: the seconds for
-- which the oldest has waited, taking the first pending job of each priority and the first held one
-- for its oldest; the number at which counts stop; and how many jobs are pending and how many held.
-- Jobs on hold are not due. Counts stop at 10,001 for ten queues, at 1,001 for forty, at 101 for the
-- rest.
-- Index: jobs_pending, by a loose scan of its queues and priorities, up to 10,000 of them, and
-- jobs_held. No locks. Safe to repeat.
create function {schema}.backlog(
  out queue text, out oldest_s float8, out cap int, out pending bigint, out held bigint
) returns setof record
language sql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
with recursive fronts (queue, priority, since) as (
  (
    select j.queue, j.priority, greatest(j.pushed_at, j.run_at)
    from {schema}.jobs as j
    where j.state = 0
    order by j.queue, j.priority desc, j.pos
    limit 1)
  union all
  select n.queue, n.priority, n.since
  from fronts as f
  cross join lateral (
    (
      select
        j.queue, j.priority, greatest(j.pushed_at, j.run_at) as since
      from {schema}.jobs as j
      where j.state = 0
        and j.queue = f.queue
        and j.priority < f.priority
      order by j.priority desc, j.pos
      limit 1)
    union all
    (
      select j.queue, j.priority, greatest(j.pushed_at, j.run_at)
      from {schema}.jobs as j
      where j.state = 0
        and j.queue > f.queue
      order by j.queue, j.priority desc, j.pos
      limit 1)
    limit 1) as n),
held (queue, since, on_hold) as (
  (
    select j.queue, greatest(j.pushed_at, j.run_at), coalesce(j.meta ? 'hold', false)
    from {schema}.jobs as j
    where j.state + 0 = 3
    order by j.queue, coalesce(j.meta ? 'hold', false), j.pos
    limit 1)
  union all
  select n.queue, n.since, n.on_hold
  from held as h
  cross join lateral (
    select
      j.queue, greatest(j.pushed_at, j.run_at) as since,
      coalesce(j.meta ? 'hold', false) as on_hold
    from {schema}.jobs as j
    where j.state + 0 = 3
      and j.queue > h.queue
    order by j.queue, coalesce(j.meta ? 'hold', false), j.pos
    limit 1) as n),
waiting (queue, oldest_s, place) as (
  select
    f.queue,
    greatest(0, extract(epoch from clock_timestamp()) - extract(epoch from min(f.since)))::float8,
    row_number() over (order by min(f.since), f.queue)
  from (
    (select p.queue, p.since from fronts as p limit 10000)
    union all
    (select h.queue, h.since from held as h where not h.on_hold limit 10000)) as f
  group by f.queue)
select w.queue, w.oldest_s,
  case when w.place <= 10 then 10000 when w.place <= 50 then 1000 else 100 end,
  case
    when w.place <= 10 then (
      select count(*) from (
        select from {schema}.jobs as j where j.state = 0 and j.queue = w.queue limit 10001) as c)
    when w.place <= 50 then (
      select count(*) from (
        select from {schema}.jobs as j where j.state = 0 and j.queue = w.queue limit 1001) as c)
    else (
      select count(*) from (
        select from {schema}.jobs as j where j.state = 0 and j.queue = w.queue limit 101) as c)
  end,
  case
    when w.place <= 10 then (
      select count(*) from (
        select from {schema}.jobs as j
        where j.state + 0 = 3 and j.queue = w.queue
          and not coalesce(j.meta ? 'hold', false) limit 10001) as c)
    when w.place <= 50 then (
      select count(*) from (
        select from {schema}.jobs as j
        where j.state + 0 = 3 and j.queue = w.queue
          and not coalesce(j.meta ? 'hold', false) limit 1001) as c)
    else (
      select count(*) from (
        select from {schema}.jobs as j
        where j.state + 0 = 3 and j.queue = w.queue
          and not coalesce(j.meta ? 'hold', false) limit 101) as c)
  end
from waiting as w
order by w.place
$$
