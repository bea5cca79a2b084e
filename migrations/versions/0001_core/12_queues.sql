create table {schema}.queues (
  name text primary key check (name ~ '^[A-Za-z0-9_.:/-]{1,128}$'),
  executor text not null default 'process',
  concurrency int,
  tags text[] not null default '{}',
  poll_interval_s float8 not null default 1,
  keep_finished boolean not null default true,
  -- Limits of one attempt, and the options of the executor.
  limits jsonb,
  options jsonb,
  -- The broker that keeps the queue's jobs, and the queue's options for it.
  broker text not null default 'postgres',
  broker_options jsonb,
  -- Limits on all workers together, which a plugin enforces.
  rules jsonb,
  paused_at timestamptz,
  resume_at timestamptz,
  declared_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp()
)
