-- The steps of workflows, each with the job that it becomes, its state and what it gave.
-- States: 0 waiting, 1 started, 4 succeeded, 5 failed, 6 cancelled, 7 failed and ignored.
-- next: whom its end lets go on; an empty name stands for the end of the workflow. needs: how many
-- have it in theirs. run: counts from 1, up by one when it is retried: what ends an earlier run is
-- not heard. on_failure: 0 fail, 1 ignore, 2 compensate. undoes: whom it undoes.
-- Without func it waits for a signal.
create table {schema}.workflows_steps (
  workflow_id uuid not null,
  name text collate "C" not null,
  place int not null,
  state smallint not null default 0 check (state in (0, 1, 4, 5, 6, 7)),
  run int not null default 1,
  needs int not null,
  next text[] collate "C" not null,
  on_failure smallint not null default 0,
  undoes text collate "C",
  added_by text collate "C",
  job_id uuid not null,
  queue text not null,
  priority smallint not null,
  func text,
  arguments jsonb,
  froms jsonb,
  run_at timestamptz,
  delay_s float8,
  max_attempts int not null,
  limits jsonb,
  meta jsonb,
  started_at timestamptz,
  finished_at timestamptz,
  result jsonb,
  error jsonb,
  primary key (workflow_id, name)
) with (
  fillfactor = 80,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0
)
