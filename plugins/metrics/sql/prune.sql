-- Removes up to $2 metrics of hours that began more than $1 seconds ago. Index: metrics_at. Locks:
-- the rows, skipping locked ones. Safe to repeat.
with gone as (
  delete from {schema}.metrics
  where ctid = any (array(
    select m.ctid
    from {schema}.metrics as m
    where m.step = 3600
      and m.at < clock_timestamp() - $1::float8 * interval '1 second'
    order by m.at
    limit $2::int
    for update skip locked))
  returning 1)
select count(*) from gone
