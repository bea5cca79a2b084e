-- Ids of jobs that finished less than about two minutes ago, while there is a queue that does not
-- keep its finished jobs. A push whose response was lost finds them here when it is repeated, and
-- does not store them again. One row for each call that finishes jobs: 16 bytes a job.
-- slot: the minute modulo 3. Each slot is a partition, which {schema}.forget_finished truncates
-- before its next turn: so there are hardly any dead rows to vacuum.
create table {schema}.recently_finished (
  slot smallint not null default (extract(epoch from clock_timestamp())::bigint / 60 % 3),
  ids uuid[] not null,
  at timestamptz not null default clock_timestamp()
) partition by list (slot)
