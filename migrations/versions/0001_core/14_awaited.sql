-- Jobs for whose end somebody waits: the statement that finishes one of them sends a notice. Written
-- and deleted by those who wait, not in the rows of jobs: a claim skips a row that somebody locks.
create table {schema}.awaited (
  id uuid primary key,
  asked_at timestamptz not null default clock_timestamp()
) with (
  vacuum_truncate = off,
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0
)
