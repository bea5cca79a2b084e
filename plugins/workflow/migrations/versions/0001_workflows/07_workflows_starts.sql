-- Steps that wait for nothing any more, and whose jobs the settlement that released them has not
-- pushed. A settlement that releases many steps pushes the jobs of the first ones; the others are
-- pushed in pieces, each in a transaction of its own, so that workers begin meanwhile. A row is one
-- piece, deleted as it is pushed.
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
