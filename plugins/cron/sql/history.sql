-- The history of an entry's ticks, newest first, at most $2. Index: the primary key. No locks.
-- Safe to repeat.
select
  {schema}.utc(tick),
  manual,
  job_id,
  {schema}.utc(run_at),
  {schema}.utc(fired_at),
  skipped,
  missed
from {schema}.cron_ticks
where entry = $1::text
order by tick desc, manual desc
limit $2::int
