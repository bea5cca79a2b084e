-- One row for each live worker. fillfactor 50: the row version that a heartbeat writes stays on its
-- page. No index has a column that heartbeats or surveys write. The columns by which all rows are
-- read come first, before long ones: that takes 0.6 to 0.9 of the time.
create table {schema}.workers (
  id uuid primary key,
  pid int not null,
  started_at timestamptz not null default clock_timestamp(),
  beat_at timestamptz not null default clock_timestamp(),
  -- The same for all workers that serve the same queues.
  crowd bigint generated always as (hash_array_extended(queues, 0)) stored,
  -- Queues for whose jobs the worker had no room at its last survey, at most 64.
  occupied text[] not null default '{}',
  host text not null,
  tags text[] not null default '{}',
  queues text[] not null default '{}',
  -- Queues that the worker should serve and cannot, each with the reason.
  broken jsonb not null default '{}',
  -- Functions of jobs in its queues that the worker does not know.
  unknown text[] not null default '{}',
  version text not null default '',
  -- Seconds for which its event loop had been blocked at the last beat.
  blocked_s float8 not null default 0,
  -- Seconds by which its clock was ahead of the server's at the last beat.
  ahead_s float8 not null default 0,
  -- Seconds without a heartbeat after which others count it as dead.
  heartbeat_timeout_s float8 not null default 15,
  -- Resident memory of its own process at the last beat; null: not known.
  memory_bytes bigint,
  -- When it was asked to shut down.
  stop_asked_at timestamptz
) with (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 1000
)
