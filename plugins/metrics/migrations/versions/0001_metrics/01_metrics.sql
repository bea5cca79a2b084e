-- Outcomes of jobs, by queue and function. step: the seconds that a row covers from `at` on; 0: a
-- report of one worker, which the next roll-up adds to its minute. Reports are inserted and never
-- updated, so workers do not wait for each other. -1: a report of {schema}.on_cancelled, which the
-- leader has not seen. -60: a minute that is also part of the row of its hour, for readers of shorter
-- steps.
-- waits, runs, ends: jobs by waiting time, run time, and both together; place n counts those below
-- 2^(n - 1) ms, the last place the rest.
create table {schema}.metrics (
  step int not null,
  at timestamptz not null,
  queue text not null,
  func text not null,
  succeeded bigint not null,
  failed bigint not null,
  retried bigint not null,
  crashed bigint not null,
  rescued bigint not null,
  cancelled bigint not null,
  expired bigint not null,
  snoozed bigint not null,
  released bigint not null,
  stale bigint not null,
  wait_s float8 not null,
  run_s float8 not null,
  waits bigint[] not null,
  runs bigint[] not null,
  ends bigint[] not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)
