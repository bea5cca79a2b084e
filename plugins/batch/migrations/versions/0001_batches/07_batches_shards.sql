-- The job counts of a batch, spread over rows so that settlements of many workers do not wait for
-- one row; the sums are the totals. pending is a stock: a completion is subtracted from any row
-- that has more than it needs. A transaction that finds no such row locks all of them, in their
-- order, and redistributes the remainder. No indexed column changes, and pages have free space for
-- updates (HOT).
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
