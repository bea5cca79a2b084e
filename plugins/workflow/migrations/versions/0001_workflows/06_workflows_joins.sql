-- The number of steps still missing until a step with several predecessors is released, or, for the
-- empty name, until the workflow ends. Separate from the steps, so that counting copies narrow
-- rows: one update for a whole batch of settlements, in the same page (HOT).
create table {schema}.workflows_joins (
  workflow_id uuid not null,
  name text collate "C" not null,
  missing int not null,
  primary key (workflow_id, name)
) with (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
)
