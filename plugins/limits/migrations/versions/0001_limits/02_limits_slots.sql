-- The jobs that each claim has started of a queue with rules that count slots: limits of concurrency,
-- sequences. A slot is free once the row of its job no longer holds the claim, so nothing has to
-- release it.
create table {schema}.limits_slots (
  queue text,
  lease uuid,
  ids uuid[] not null,
  keys text[] not null,
  claimed_at timestamptz not null default clock_timestamp(),
  primary key (queue, lease)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0)
