-- Partitions with held jobs. A partition that may run has a turn: its place in the ring. Otherwise
-- it is blocked by a group without a free slot, or waits for a time.
-- All its held jobs come after the position (after_priority, after_pos). Of a turn that fair shares
-- have begun, unfinished is how many jobs may still start; null: the turn has not begun.
create table {schema}.limits_partitions (
  queue text,
  key text,
  priority smallint not null,
  turn bigint,
  unfinished int,
  blocked text,
  ready_at timestamptz,
  after_priority smallint not null,
  after_pos bigint not null,
  primary key (queue, key)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0)
