-- What the sweep looks at for a day: what runs goes on when a workflow has failed.
create index workflows_lately on {schema}.workflows (finished_at, id) include (state, undoing)
  where state in (5, 6)
