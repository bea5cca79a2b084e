-- Jobs whose completion a client waits for: the statement that finishes one of them sends a notice.
-- The waiting clients insert and delete these rows. The rows of jobs do not hold this mark, because
-- a claim skips a row that another transaction has locked. waiters: how many clients wait.
create table {schema}.awaited (
  id uuid primary key,
  asked_at timestamptz not null default clock_timestamp(),
  waiters int not null default 1
) with (
  vacuum_truncate = off,
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0
)
