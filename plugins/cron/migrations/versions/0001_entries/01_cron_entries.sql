-- Jobs that are pushed on a schedule, with the progress of each entry. No worker holds a row lock
-- while it computes: a worker that has read an entry fires its ticks only if the revision is
-- unchanged.
create table {schema}.cron_entries (
  name text primary key check (name ~ '^[A-Za-z0-9_.:/-]{1,128}$'),
  expression text not null,
  zone text not null default 'UTC',
  misfire text not null default 'one',
  grace_s float8 not null default 60,
  backfill_limit int not null default 100,
  overlap text not null default 'allow',
  jitter_s float8 not null default 0,
  func text not null,
  arguments jsonb not null default '{}' check (jsonb_typeof(arguments) = 'object'),
  queue text not null default 'default',
  priority smallint not null default 0,
  max_attempts int not null default 25 check (max_attempts > 0),
  meta jsonb check (jsonb_typeof(meta) = 'object'),
  limits jsonb check (jsonb_typeof(limits) = 'object'),
  lapses_at timestamptz,
  paused_at timestamptz,
  from_at timestamptz not null default clock_timestamp(),
  last_tick timestamptz,
  next_at timestamptz not null default '-infinity',
  jobs uuid[] not null default '{}',
  problem text,
  revision bigint not null default 0,
  added_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp()
)
