-- Removes up to $3 metrics of step $1 that began before the hour $2 seconds ago. Index: metrics_at.
-- Locks: the rows, skipping locked ones. Safe to repeat.
with gone as (
  delete from {schema}.metrics
  where ctid = any (array(
    select m.ctid
    from {schema}.metrics as m
    where m.step = $1::int
      and m.at < date_trunc('hour', statement_timestamp() - $2::float8 * interval '1 second', 'UTC')
    order by m.at
    limit $3::int
    for update skip locked))
  returning 1)
select count(*) from gone
