-- What the sweep forgets when it is old.
create index batches_finished on {schema}.batches (finished_at) where finished_at is not null
