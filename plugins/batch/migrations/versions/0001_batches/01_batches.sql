-- Batches. States: 1 running, 4 succeeded, 5 failed, 6 cancelled. open: it may get more jobs, and does
-- not end. shards: how many rows count its jobs. Written when it is pushed, closed, asked to stop, and
-- when it ends: what its jobs do is counted elsewhere.
create table {schema}.batches (
  id uuid primary key,
  name text not null,
  state smallint not null default 1 check (state in (1, 4, 5, 6)),
  open boolean not null,
  shards smallint not null default 1 check (shards between 1 and 64),
  pushed_at timestamptz not null default clock_timestamp(),
  stop_asked_at timestamptz,
  finished_at timestamptz
)
