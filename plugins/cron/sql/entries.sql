-- Entries ordered by name: all, or the one named $1; at most $2. Index: the primary key. No locks.
-- Safe to repeat.
select
  name,
  expression,
  zone,
  misfire,
  grace_s,
  backfill_limit,
  overlap,
  jitter_s,
  func,
  arguments::text,
  queue,
  priority,
  max_attempts,
  meta::text,
  limits::text,
  lapses_at is not null,
  coalesce(lapses_at <= statement_timestamp(), false),
  {schema}.utc(paused_at),
  {schema}.utc(last_tick),
  {schema}.utc(nullif(next_at, '-infinity')),
  {schema}.utc(greatest(from_at, last_tick)),
  {schema}.utc(statement_timestamp()),
  problem
from {schema}.cron_entries
where $1::text is null
  or name = $1
order by name
limit $2::int
