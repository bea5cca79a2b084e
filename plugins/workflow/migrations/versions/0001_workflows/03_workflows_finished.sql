-- What the sweep forgets when it is old.
create index workflows_finished on {schema}.workflows (finished_at) where finished_at is not null
