-- Workflows. States: 1 running, 2 compensating, 3 failing, 4 succeeded, 5 failed, 6 cancelled, 7
-- compensated. A failing workflow waits for its running steps: they may fail, too, and request
-- compensation.
-- undoing: no other step runs any more, and completed steps are being undone. failed: the number of
-- failed steps. runs: of a workflow that fails, or is about to be undone, the first step by name
-- that was seen to run.
-- early: the number of signals that arrived before the steps that wait for them. While there are
-- any, a transaction that releases steps locks the workflow exclusively: such a step ends as soon
-- as it waits, and the steps that it releases are locked after those released before it, in no
-- order that concurrent transactions could keep.
-- While the workflow runs, its row changes only with these two counts: steps that release others
-- hold a shared lock on it.
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
