create table {schema}.queues (
  name text primary key check (name ~ '^[A-Za-z0-9_.:/-]{1,128}$'),
  executor text not null default 'process',
  concurrency int,
  tags text[] not null default '{}',
  poll_interval_s float8 not null default 1,
  keep_finished boolean not null default true,
  paused_at timestamptz,
  resume_at timestamptz,
  declared_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp()
)
