-- The steps of workflows, each with the job that runs it, and its result.
-- States: 0 open, 4 succeeded, 5 failed, 6 cancelled, 7 failed and ignored. Whether an open step runs
-- follows from its job and from the steps before it, so that a step is written once when it is
-- pushed and once when it completes. No index has a column that changes, and pages have room for
-- these writes (HOT): 9 µs a step instead of 18.
-- next: the steps that wait for this one alone. joins: the steps that wait for others, too; an empty
-- name is the end of the workflow. needs: the number of steps before it; previous: that step, if
-- there is one. run: counts from 1, incremented by a retry: outcomes of an earlier run are ignored.
-- on_failure: 0 fail, 1 ignore, 2 compensate. undoes: the step that it undoes. added_by: the step
-- that added it. A step without func waits for a signal, at most delay_s; arguments decide what
-- follows: its default, or the cancellation of the workflow, or nothing: the step fails.
-- The columns that an outcome changes come last, because the WAL has a row from its first change on.
create table {schema}.workflows_steps (
  workflow_id uuid not null,
  name text collate "C" not null,
  place int not null,
  run int not null default 1,
  needs int not null,
  previous text collate "C",
  next text[] collate "C" not null default '{}',
  joins text[] collate "C" not null default '{}',
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
  state smallint not null default 0 check (state in (0, 4, 5, 6, 7)),
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
