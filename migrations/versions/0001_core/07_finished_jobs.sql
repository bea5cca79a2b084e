-- Finished jobs: one row each, written once, dropped by day (UTC).
-- States: 4 succeeded, 5 failed, 6 cancelled. There is no unique index: only the statement that
-- deletes the live row writes a row here.
create table {schema}.finished_jobs (
  id uuid not null,
  pos bigint not null,
  state smallint not null check (state between 4 and 6),
  queue text not null,
  priority smallint not null,
  func text not null,
  arguments jsonb,
  run_at timestamptz,
  attempt int not null,
  max_attempts int not null,
  crashes smallint not null,
  lease uuid,
  worker_id uuid,
  claimed_at timestamptz,
  deadline_at timestamptz,
  stop_asked_at timestamptz,
  unique_key bytea,
  limits jsonb,
  meta jsonb,
  errors jsonb,
  pushed_at timestamptz not null,
  result jsonb,
  finished_at timestamptz not null default clock_timestamp()
) partition by range (finished_at)
