-- Of up to $4 failed jobs of the history behind ($1, $2), in the order of their ends: those that
-- are no dead letters and were not purged. The last one that was looked at is among them in any
-- case: the place to go on from. $1 null: from $3 seconds ago.
-- Index: dead_letters_failed of the days in question, the primary keys. The deaths are compared so
-- that no index by them serves it: taken for a short way with old statistics, it was read whole for
-- each job (1,826 pages of 200,000 letters). No locks. Safe to repeat.
with seen as materialized (
  select f.id, f.finished_at
  from {schema}.finished_jobs as f
  where f.state = 5
    and f.finished_at >= coalesce(
      $1::timestamptz, now() - $3::float8 * interval '1 second')
    and ($1::timestamptz is null or (f.finished_at, f.id) > ($1::timestamptz, $2::uuid))
    and f.finished_at < now() + interval '1 hour'
  order by f.finished_at, f.id
  limit $4::int)
select s.id, {schema}.utc(s.finished_at), s.missing
from (
  select
    n.id,
    n.finished_at,
    not exists (
      select
      from {schema}.dead_letters as d
      where d.id = n.id
        and coalesce(d.died_at >= n.finished_at, false))
    and not exists (
      select
      from {schema}.dead_letters_purged as p
      where p.id = n.id
        and coalesce(p.died_at >= n.finished_at, false)) as missing,
    lead(n.id) over (order by n.finished_at, n.id) is null as last
  from seen as n) as s
where s.missing
  or s.last
order by s.finished_at, s.id
