-- What the sweep looks at.
create index batches_going on {schema}.batches (id) where state = 1
