-- The metrics of the last $1 seconds (null: since the hour began) in steps of $2 seconds, of queue $3 and function $4 (null: all),
-- by queue and function where $5 and $6 are true, else with the name ''. Oldest first; a step without
-- jobs has no row. Steps of whole hours ($7) are read from the rows of hours, from the minutes of the
-- first hour if a part of it is wanted, and from the minutes and reports that no hour holds yet;
-- others from minutes, and for the time over $8 seconds ago, whose minutes are gone, from hours. The
-- places of the histograms are added up one by one: with an aggregate over lists it took three times as
-- long. Index: metrics_at. No locks. Safe to repeat.
select
  extract(epoch from date_bin($2::float8 * interval '1 second', m.at, 'epoch'))::float8 as at,
  case when $5::boolean then m.queue else '' end as queue,
  case when $6::boolean then m.func else '' end as func,
  sum(m.succeeded)::bigint, sum(m.failed)::bigint, sum(m.retried)::bigint,
  sum(m.crashed)::bigint, sum(m.rescued)::bigint, sum(m.cancelled)::bigint,
  sum(m.expired)::bigint, sum(m.snoozed)::bigint, sum(m.released)::bigint,
  sum(m.stale)::bigint, sum(m.wait_s)::float8, sum(m.run_s)::float8,
  array[
    coalesce(sum(m.waits[1]::float8), 0), coalesce(sum(m.waits[2]::float8), 0), coalesce(sum(m.waits[3]::float8), 0),
    coalesce(sum(m.waits[4]::float8), 0), coalesce(sum(m.waits[5]::float8), 0), coalesce(sum(m.waits[6]::float8), 0),
    coalesce(sum(m.waits[7]::float8), 0), coalesce(sum(m.waits[8]::float8), 0), coalesce(sum(m.waits[9]::float8), 0),
    coalesce(sum(m.waits[10]::float8), 0), coalesce(sum(m.waits[11]::float8), 0), coalesce(sum(m.waits[12]::float8), 0),
    coalesce(sum(m.waits[13]::float8), 0), coalesce(sum(m.waits[14]::float8), 0), coalesce(sum(m.waits[15]::float8), 0),
    coalesce(sum(m.waits[16]::float8), 0), coalesce(sum(m.waits[17]::float8), 0), coalesce(sum(m.waits[18]::float8), 0),
    coalesce(sum(m.waits[19]::float8), 0), coalesce(sum(m.waits[20]::float8), 0), coalesce(sum(m.waits[21]::float8), 0),
    coalesce(sum(m.waits[22]::float8), 0), coalesce(sum(m.waits[23]::float8), 0), coalesce(sum(m.waits[24]::float8), 0)
  ]::bigint[]::text,
  array[
    coalesce(sum(m.runs[1]::float8), 0), coalesce(sum(m.runs[2]::float8), 0), coalesce(sum(m.runs[3]::float8), 0),
    coalesce(sum(m.runs[4]::float8), 0), coalesce(sum(m.runs[5]::float8), 0), coalesce(sum(m.runs[6]::float8), 0),
    coalesce(sum(m.runs[7]::float8), 0), coalesce(sum(m.runs[8]::float8), 0), coalesce(sum(m.runs[9]::float8), 0),
    coalesce(sum(m.runs[10]::float8), 0), coalesce(sum(m.runs[11]::float8), 0), coalesce(sum(m.runs[12]::float8), 0),
    coalesce(sum(m.runs[13]::float8), 0), coalesce(sum(m.runs[14]::float8), 0), coalesce(sum(m.runs[15]::float8), 0),
    coalesce(sum(m.runs[16]::float8), 0), coalesce(sum(m.runs[17]::float8), 0), coalesce(sum(m.runs[18]::float8), 0),
    coalesce(sum(m.runs[19]::float8), 0), coalesce(sum(m.runs[20]::float8), 0), coalesce(sum(m.runs[21]::float8), 0),
    coalesce(sum(m.runs[22]::float8), 0), coalesce(sum(m.runs[23]::float8), 0), coalesce(sum(m.runs[24]::float8), 0)
  ]::bigint[]::text,
  array[
    coalesce(sum(m.ends[1]::float8), 0), coalesce(sum(m.ends[2]::float8), 0), coalesce(sum(m.ends[3]::float8), 0),
    coalesce(sum(m.ends[4]::float8), 0), coalesce(sum(m.ends[5]::float8), 0), coalesce(sum(m.ends[6]::float8), 0),
    coalesce(sum(m.ends[7]::float8), 0), coalesce(sum(m.ends[8]::float8), 0), coalesce(sum(m.ends[9]::float8), 0),
    coalesce(sum(m.ends[10]::float8), 0), coalesce(sum(m.ends[11]::float8), 0), coalesce(sum(m.ends[12]::float8), 0),
    coalesce(sum(m.ends[13]::float8), 0), coalesce(sum(m.ends[14]::float8), 0), coalesce(sum(m.ends[15]::float8), 0),
    coalesce(sum(m.ends[16]::float8), 0), coalesce(sum(m.ends[17]::float8), 0), coalesce(sum(m.ends[18]::float8), 0),
    coalesce(sum(m.ends[19]::float8), 0), coalesce(sum(m.ends[20]::float8), 0), coalesce(sum(m.ends[21]::float8), 0),
    coalesce(sum(m.ends[22]::float8), 0), coalesce(sum(m.ends[23]::float8), 0), coalesce(sum(m.ends[24]::float8), 0)
  ]::bigint[]::text
from {schema}.metrics as m
cross join (
  select
    coalesce(
      statement_timestamp() - $1::float8 * interval '1 second',
      date_trunc('hour', statement_timestamp(), 'UTC')) as first,
    date_trunc('hour', statement_timestamp() - $8::float8 * interval '1 second', 'UTC') as minutes) as t
where (
    (m.step in (-1, 0, 60) and m.at >= t.first)
    or (m.step = 3600 and m.at >= t.first and ($7::boolean or m.at < t.minutes))
    or (m.step = -60 and m.at >= greatest(t.first, t.minutes) and m.at < case when $7::boolean
      then date_trunc('hour', t.first - interval '1 microsecond', 'UTC') + interval '1 hour'
      else 'infinity' end))
  and ($3::text is null or m.queue = $3::text)
  and ($4::text is null or m.func = $4::text)
group by 1, 2, 3
order by 1, 2, 3
