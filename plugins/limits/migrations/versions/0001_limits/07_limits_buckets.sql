-- Token buckets of rate limits, by the place of the rule and the group; without a row: full.
-- paused_until: a job of the group asked for a pause.
create table {schema}.limits_buckets (
  queue text,
  rule int,
  grp text,
  tokens float8 not null,
  at timestamptz not null,
  paused_until timestamptz,
  primary key (queue, rule, grp)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0)
