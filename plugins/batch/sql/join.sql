-- Adds jobs pushed in this transaction to a batch; see the function. Index: the primary keys.
-- Locks: what it inserts. Not to be repeated.
select {schema}.batches_join($1::uuid, $2::uuid[])
