-- Jobs of Redis queues that were pushed inside transactions, until a relay has taken them over.
-- A row is written twice and deleted: half of each page stays free, so that no index is written for
-- it.
create table {schema}.redis_outbox (
  pos bigint generated always as identity primary key,
  id uuid not null,
  queue text not null,
  priority smallint not null,
  func text not null,
  arguments jsonb not null,
  run_at timestamptz,
  max_attempts int not null,
  meta jsonb,
  limits jsonb,
  rule jsonb,
  pushed_at timestamptz not null default clock_timestamp(),
  taken_until timestamptz,
  problem text
)
with (fillfactor = 50)
