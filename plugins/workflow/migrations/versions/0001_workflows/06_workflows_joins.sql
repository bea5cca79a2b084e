-- How many steps are missing yet until a step with several of them before it goes on, or, of the
-- empty name, until the workflow ends. Apart from the steps, so that counting copies narrow rows: one
-- update for all that a batch of settlements brings, in the same page (HOT).
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
