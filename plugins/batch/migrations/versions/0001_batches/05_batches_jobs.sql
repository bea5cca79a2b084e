-- The jobs of batches that have not succeeded. States: 0 not ended, 5 failed, 6 cancelled, 7 a
-- failed replay of the job root. A job that succeeds is deleted here and counted: a batch whose
-- jobs all succeed leaves no rows behind, and a job counts once, however often its outcome is
-- reported.
create table {schema}.batches_jobs (
  batch_id uuid not null,
  job_id uuid not null,
  state smallint not null default 0 check (state in (0, 5, 6, 7)),
  root uuid,
  primary key (batch_id, job_id)
) with (
  vacuum_truncate = off,
  autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0
)
