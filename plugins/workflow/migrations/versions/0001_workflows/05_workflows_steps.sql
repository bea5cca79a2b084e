-- The steps of workflows, each with the job that it becomes, and what it gave.
-- States: 0 not ended, 4 succeeded, 5 failed, 6 cancelled, 7 failed and ignored. Whether one that has
-- not ended runs is seen by its job, and by the steps before it, so that a step is written once when it
-- is pushed and once when it ends. No index has a column that changes, and pages have room for what
-- that writes (HOT): 9 µs a step instead of 18.
-- next: whom its end lets go on; an empty name stands for the end of the workflow. needs: how many
-- have it in theirs; previous: the one, if it is one. run: counts from 1, up by one when it is retried:
-- what ends an earlier run is not heard. on_failure: 0 fail, 1 ignore, 2 compensate. undoes: whom it
-- undoes. added_by: the step that added it. Without func it waits for a signal, with delay_s for so long;
-- arguments say what then: its default, or that it cancels the workflow, or nothing: it fails.
create table {schema}.workflows_steps (
  workflow_id uuid not null,
  name text collate "C" not null,
  place int not null,
  state smallint not null default 0 check (state in (0, 4, 5, 6, 7)),
  run int not null default 1,
  needs int not null,
  previous text collate "C",
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
  finished_at timestamptz,
  took_s float8,
  result jsonb,
  error jsonb,
  primary key (workflow_id, name)
) with (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0
)
