-- Serves the sweep: batches to purge when they are old.
create index batches_finished on {schema}.batches (finished_at) where finished_at is not null
