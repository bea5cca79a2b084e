-- The newest $1 dead letters grouped by queue, function, reason and error type; up to $2 groups,
-- those with the most dead letters not replayed yet first. Index: dead_letters_died. No locks.
-- Safe to repeat.
select
  d.queue, d.func, d.reason, d.error,
  count(*) filter (where d.replayed_at is null) as waiting,
  count(*) filter (where d.replayed_at is not null) as replayed,
  {schema}.utc(min(d.died_at)), {schema}.utc(max(d.died_at))
from (
  select o.queue, o.func, o.reason, o.error, o.replayed_at, o.died_at
  from {schema}.dead_letters as o
  order by o.died_at desc, o.id desc
  limit $1::int) as d
group by d.queue, d.func, d.reason, d.error
order by waiting desc, replayed desc, d.queue, d.func, d.reason, d.error
limit $2::int
