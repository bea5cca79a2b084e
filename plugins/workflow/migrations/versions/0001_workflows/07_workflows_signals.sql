-- Signals that arrived before the step that waits for them.
create table {schema}.workflows_signals (
  workflow_id uuid not null,
  name text collate "C" not null,
  payload jsonb,
  sent_at timestamptz not null default clock_timestamp(),
  primary key (workflow_id, name)
)
