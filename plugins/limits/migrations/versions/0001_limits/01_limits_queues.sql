-- The state of each queue with rules. Its row is locked by every claim of the queue, and by nothing
-- that a push waits for.
-- rules: those that are applied, as in queues.rules. bys: the distinct paths of partition keys.
-- kinds, by_nos, maxima, rates, bursts: the rules one by one; by_nos: 0 for the whole queue, else the
-- place of the path in bys.
-- hints: the position in each priority up to which no pending job is left; before: the hints some
-- time ago; ring: the first turn in each priority.
-- swept_to: the group at which the last sweep stopped letting blocked partitions try again.
-- strays: held jobs that were locked when the partition keys changed, and still have the old keys.
create table {schema}.limits_queues (
  queue text primary key,
  rules jsonb not null,
  bys text[] not null,
  kinds text[] not null,
  by_nos int[] not null,
  maxima int[] not null,
  rates float8[] not null,
  bursts float8[] not null,
  hints jsonb not null default '{}',
  before jsonb not null default '{}',
  marked_at timestamptz not null default '-infinity',
  front_at timestamptz not null default '-infinity',
  ring jsonb not null default '{}',
  strays uuid[] not null default '{}',
  clock timestamptz not null default '-infinity',
  claimed_at timestamptz not null default '-infinity',
  swept_at timestamptz not null default '-infinity',
  swept_to text not null default ''
) with (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
  autovacuum_vacuum_cost_delay = 0)
