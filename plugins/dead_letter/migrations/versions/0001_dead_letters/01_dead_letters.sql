-- Jobs that have finally failed, each with the data needed to diagnose and to replay it. They stay
-- when the history of finished jobs is pruned.
create table {schema}.dead_letters (
  id uuid primary key,
  queue text not null,
  priority smallint not null,
  func text not null,
  arguments jsonb,
  max_attempts int not null,
  unique_key bytea,
  limits jsonb,
  meta jsonb,
  attempt int not null,
  crashes smallint not null,
  errors jsonb,
  worker_id uuid,
  host text,
  pushed_at timestamptz not null,
  died_at timestamptz not null,
  reason text not null,
  error text,
  replayed_at timestamptz,
  replayed_as uuid,
  replays int not null default 0,
  fingerprint text not null
    generated always as ({schema}.dead_letters_fingerprint(func, reason, errors)) stored
)
