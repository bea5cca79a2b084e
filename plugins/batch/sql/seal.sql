-- Starts a batch of this transaction; see the function. Index: the primary keys.
-- Locks: what it inserts, and the batch. Not to be repeated.
select {schema}.batches_seal($1::uuid, $2::int, $3::int)
