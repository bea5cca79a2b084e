-- Workflows. States: 1 running, 2 compensating, 3 failing, 4 succeeded, 5 failed, 6 cancelled,
-- 7 compensated. A failing one waits for what runs yet: that may fail, too, and ask for compensation.
-- undoing: nothing else runs any more, and what was done is being undone. failed: how many steps are.
-- runs: of one that fails, or is about to be undone, the first step by name that was seen to run yet.
-- early: how many signals came before the steps that wait for them. While there are any, whoever lets steps go
-- on has the workflow for itself: such a step ends as soon as it waits, and what it lets go on is locked after
-- what was let go before it, in no order that others could keep.
-- The row changes with those two alone while it runs: steps that go on hold it still by sharing its lock.
create table {schema}.workflows (
  id uuid primary key,
  name text not null,
  state smallint not null default 1 check (state between 1 and 7),
  undoing boolean not null default false,
  failed int not null default 0,
  runs text collate "C",
  early int not null default 0,
  steps int not null,
  error text,
  pushed_at timestamptz not null default clock_timestamp(),
  finished_at timestamptz
)
