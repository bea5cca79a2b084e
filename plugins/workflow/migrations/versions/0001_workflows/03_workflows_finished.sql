-- Serves the sweep: workflows to purge when they are old.
create index workflows_finished on {schema}.workflows (finished_at) where finished_at is not null
