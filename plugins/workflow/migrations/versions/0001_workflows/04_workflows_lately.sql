-- Workflows that the sweep checks for one day: running steps continue after a workflow has failed.
create index workflows_lately on {schema}.workflows (finished_at, id) include (state, undoing)
  where state in (5, 6)
