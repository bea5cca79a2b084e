-- The jobs that a batch pushes. Kinds: 1 all succeeded, 2 the first has failed, 3 all have ended.
-- expires_s: seconds from its push until it expires. pushed_at: the row is written once, so that each
-- callback is pushed once.
create table {schema}.batches_callbacks (
  batch_id uuid not null,
  kind smallint not null check (kind between 1 and 3),
  job_id uuid not null,
  queue text not null,
  priority smallint not null,
  func text not null,
  arguments jsonb,
  run_at timestamptz,
  delay_s float8,
  max_attempts int not null,
  limits jsonb,
  meta jsonb,
  expires_at timestamptz,
  expires_s float8,
  pushed_at timestamptz,
  primary key (batch_id, kind)
)
