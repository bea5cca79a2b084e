-- Workflows that may have been replayed.
create index workflows_over on {schema}.workflows (id) where state in (5, 6)
