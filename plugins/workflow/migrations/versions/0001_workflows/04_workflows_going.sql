-- Serves the sweep: workflows to check.
create index workflows_going on {schema}.workflows (id) where state in (1, 2, 3)
