-- Unique keys that are held for a time from a push on, whatever becomes of the job. A row that is
-- over means nothing: the next push of the key takes it, or somebody deletes it.
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
