-- The metrics of the last $1 seconds (null: since the hour began) in steps of $2 seconds, of queue $3 and function $4 (null: all),
-- by queue and function where $5 and $6 are true, else with the name ''. Oldest first; a step without
-- jobs has no row. Index: metrics_at. No locks. Safe to repeat.
select
  extract(epoch from date_bin($2::float8 * interval '1 second', m.at, 'epoch'))::float8 as at,
  case when $5::boolean then m.queue else '' end as queue,
  case when $6::boolean then m.func else '' end as func,
  sum(m.succeeded)::bigint,
  sum(m.failed)::bigint,
  sum(m.retried)::bigint,
  sum(m.crashed)::bigint,
  sum(m.cancelled)::bigint,
  sum(m.snoozed)::bigint,
  sum(m.released)::bigint,
  sum(m.stale)::bigint,
  sum(m.wait_s)::float8,
  sum(m.run_s)::float8,
  {schema}.metrics_sum(m.waits)::text,
  {schema}.metrics_sum(m.runs)::text
from {schema}.metrics as m
where m.step in (0, 60, 3600)
  and m.at >= coalesce(
    clock_timestamp() - $1::float8 * interval '1 second',
    date_trunc('hour', clock_timestamp(), 'UTC'))
  and ($3::text is null or m.queue = $3::text)
  and ($4::text is null or m.func = $4::text)
group by 1, 2, 3
order by 1, 2, 3
