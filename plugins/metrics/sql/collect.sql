-- Turns up to $1 reports of {schema}.on_cancelled into ordinary ones, and returns their counts by queue
-- and function: each report once. Index: metrics_at. Locks: the rows, skipping locked ones. Not safe to
-- repeat: what the first run returned is lost.
with seen as (
  update {schema}.metrics
  set step = 0
  where ctid = any (array(
    select m.ctid
    from {schema}.metrics as m
    where m.step = -1
    order by m.at
    limit $1::int
    for update skip locked))
  returning queue, func, cancelled, expired)
select s.queue, s.func, sum(s.cancelled)::bigint, sum(s.expired)::bigint
from seen as s
group by s.queue, s.func
