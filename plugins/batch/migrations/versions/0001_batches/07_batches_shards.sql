-- How the jobs of a batch stand, spread over rows so that settlements of many workers do not wait for
-- one: the sums count. pending is a stock: an end takes from any row that has more than it needs, and
-- who finds none locks all of them, in their order, and spreads what is left. No index has a column that
-- changes, and pages have room for what that writes (HOT).
create table {schema}.batches_shards (
  batch_id uuid not null,
  shard smallint not null,
  pending int not null default 0,
  succeeded int not null default 0,
  failed int not null default 0,
  cancelled int not null default 0,
  primary key (batch_id, shard)
) with (
  fillfactor = 30,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
)
