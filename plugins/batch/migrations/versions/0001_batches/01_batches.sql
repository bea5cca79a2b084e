-- Batches. States: 1 running, 4 succeeded, 5 failed, 6 cancelled. open: jobs may still be added,
-- and the batch does not end. shards: the number of rows that count its jobs. A row is written when
-- the batch is pushed, closed, asked to stop, and when it ends; the progress of its jobs is counted
-- in other tables.
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
