-- Steps whose jobs another broker keeps, from the time of the push until their outcome is reported.
-- The row records that the step has a job: a check for missing jobs queries that broker.
create table {schema}.workflows_away (
  workflow_id uuid not null,
  job_id uuid not null,
  name text collate "C" not null,
  run int not null,
  pushed_at timestamptz not null default clock_timestamp(),
  primary key (workflow_id, job_id)
) with (
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
)
