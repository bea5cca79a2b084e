-- Steps that wait for nothing any more, and of which the settlement that let them go has not pushed the jobs:
-- where it lets many go it pushes those of the first, and the others are pushed in pieces, each in a
-- transaction of its own, so that workers begin meanwhile. A row is one piece, deleted as it is pushed.
create table {schema}.workflows_starts (
  workflow_id uuid not null,
  id uuid not null default {schema}.new_id(),
  names text[] collate "C" not null,
  primary key (workflow_id, id)
) with (
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
)
