-- All unfinished jobs. The table stays small, is vacuumed aggressively, and has no foreign keys or
-- triggers.
-- States: 0 pending, 1 running, 2 scheduled, 3 held. The lease stays on the row after the claim has
-- ended, so that a settlement whose response was lost is recognised when it is repeated.
-- unique_until_claim: whether a claim releases the unique key. Null: it does not.
-- expires_at: when the job is cancelled unless an attempt has begun; see {schema}.expired. Null: never.
-- unique_replaces: whether the job replaces one that holds its key in the other broker of its queue.
-- Null: it does not.
create table {schema}.jobs (
  id uuid primary key,
  pos bigint not null,
  state smallint not null check (state between 0 and 3),
  queue text not null,
  priority smallint not null default 0,
  func text not null,
  arguments jsonb,
  run_at timestamptz,
  attempt int not null default 0,
  max_attempts int not null default 1,
  crashes smallint not null default 0,
  lease uuid,
  worker_id uuid,
  claimed_at timestamptz,
  deadline_at timestamptz,
  stop_asked_at timestamptz,
  unique_key bytea,
  unique_until_claim boolean,
  unique_replaces boolean,
  limits jsonb,
  meta jsonb,
  errors jsonb,
  pushed_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz
) with (
  fillfactor = 70,
  vacuum_truncate = off,
  toast.vacuum_truncate = off,
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0,
  autovacuum_analyze_threshold = 50000
)
