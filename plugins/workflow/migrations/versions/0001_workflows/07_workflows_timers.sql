-- The times at which steps stop waiting for their signals. A row is written when a step begins to
-- wait, and deleted when it is due, regardless of the state of the step by then.
create table {schema}.workflows_timers (
  workflow_id uuid not null,
  name text collate "C" not null,
  run int not null,
  due_at timestamptz not null,
  primary key (workflow_id, name, run)
)
