-- Partitions with held jobs. A partition that may run has a turn: its place in the ring. Otherwise
-- it is blocked by a group without a free slot, or waits for a time.
-- With fair shares and a rule with another key, the partitions of a tenant that may run line up behind
-- it in the order of their last turns, blocked by the group '0:tenant'; the tenant has the turn.
-- The jobs of a sequence are one partition, whatever their values of the keys of other rules: head has
-- all values of its first job, if there are others.
-- Its priority is that of its first held job; with fair shares, 0.
-- All its held jobs come after the position (after_priority, after_pos). Of a turn that fair shares
-- have begun, unfinished is how many jobs may still start; null: the turn has not begun.
-- last_turn: of one that waits, the turn that it had, or a new one if it has started a job in it.
-- Partitions that waited for the same get their turns in this order; else the first would start again.
create table {schema}.limits_partitions (
  queue text,
  key text,
  priority smallint not null,
  turn bigint,
  unfinished int,
  last_turn bigint,
  blocked text,
  ready_at timestamptz,
  head text,
  tenant text,
  after_priority smallint not null,
  after_pos bigint not null,
  primary key (queue, key)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0)
