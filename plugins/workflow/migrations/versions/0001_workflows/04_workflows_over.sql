-- The same, for a day: what runs goes on when a workflow has failed.
create index workflows_over on {schema}.workflows (id, finished_at) where state in (5, 6)
