create index batches_name on {schema}.batches (name, id)
