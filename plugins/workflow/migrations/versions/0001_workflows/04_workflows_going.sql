-- What the sweep looks at.
create index workflows_going on {schema}.workflows (id) where state in (1, 2, 3)
