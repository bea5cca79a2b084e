-- A job in a list of the dashboard. position: where the next page goes on behind it.
create type {schema}.dashboard_job as (
  position text,
  id uuid,
  func text,
  queue text,
  priority smallint,
  state smallint,
  attempt int,
  max_attempts int,
  run_at timestamptz,
  worker_id uuid,
  pushed_at timestamptz,
  claimed_at timestamptz,
  finished_at timestamptz,
  arguments jsonb,
  errors jsonb,
  meta jsonb
)
