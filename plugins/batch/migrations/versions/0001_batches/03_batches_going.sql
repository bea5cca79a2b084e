-- Serves the sweep: batches to check.
create index batches_going on {schema}.batches (id) where state = 1
