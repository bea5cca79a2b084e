-- Stores an entry. $16: also replaces an existing one, which keeps its pause, its last tick and its
-- history; another expression or time zone applies from now on. $17: seconds after which an entry
-- of a worker's code lapses unless it is declared again; null: this call sets no lapse. At most $18
-- entries. Returns whether the entry existed; no row if it was not stored.
-- Index: the primary key of cron_entries. Locks: its row; with $17, fails after waiting 100 ms for it.
-- Safe to repeat.
insert into {schema}.cron_entries as e (
  name, expression, zone, misfire, grace_s, backfill_limit, overlap, jitter_s,
  func, arguments, queue, priority, max_attempts, meta, limits, lapses_at)
select
  $1::text, $2::text, $3::text, $4::text, $5::float8, $6::int, $7::text, $8::float8,
  $9::text, $10::text::jsonb, $11::text, $12::smallint, $13::int, $14::text::jsonb,
  $15::text::jsonb, clock_timestamp() + $17::float8 * interval '1 second'
where (select count(*) from {schema}.cron_entries as o where o.name <> $1::text) < $18::bigint
  and ($17::float8 is null or set_config('lock_timeout', '100ms', true) is not null)
on conflict (name) do update
set
  expression = excluded.expression,
  zone = excluded.zone,
  misfire = excluded.misfire,
  grace_s = excluded.grace_s,
  backfill_limit = excluded.backfill_limit,
  overlap = excluded.overlap,
  jitter_s = excluded.jitter_s,
  func = excluded.func,
  arguments = excluded.arguments,
  queue = excluded.queue,
  priority = excluded.priority,
  max_attempts = excluded.max_attempts,
  meta = excluded.meta,
  limits = excluded.limits,
  lapses_at = coalesce(excluded.lapses_at, e.lapses_at),
  from_at = case
    when (e.expression, e.zone) = (excluded.expression, excluded.zone) then e.from_at
    else clock_timestamp()
  end,
  last_tick = case
    when (e.expression, e.zone) = (excluded.expression, excluded.zone)
      or e.last_tick < clock_timestamp() then e.last_tick
  end,
  next_at = '-infinity',
  problem = null,
  revision = e.revision + 1,
  updated_at = clock_timestamp()
where $16::boolean
returning xmax <> 0
