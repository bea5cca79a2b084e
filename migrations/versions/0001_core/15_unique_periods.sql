-- Unique keys that are held for a period after a push, regardless of the outcome of the job. An
-- expired row has no effect: the next push of the key takes it over, or a cleanup deletes it.
create table {schema}.unique_periods (
  unique_key bytea primary key,
  job_id uuid not null,
  until timestamptz not null
) with (
  vacuum_truncate = off,
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0
)
