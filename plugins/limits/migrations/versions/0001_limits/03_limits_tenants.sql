-- Tenants of fair shares that may have several partitions, as the queue has a rule with another key. A
-- tenant with a partition that may run has a turn: its place in the ring. Of a turn that has begun,
-- unfinished is how many jobs may still start; null: the turn has not begun.
-- last_turn: of one without a turn, the one that it gets back: the one that it had, or a new one if it
-- has started a job in it. Null: one at the end, as it had no partitions.
create table {schema}.limits_tenants (
  queue text,
  tenant text,
  turn bigint,
  unfinished int,
  last_turn bigint,
  primary key (queue, tenant)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0)
