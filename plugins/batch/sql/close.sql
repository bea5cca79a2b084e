-- Closes a batch, and with $2 asks it to stop; see the function. Index: the primary key.
-- Locks: the batch. Safe to repeat.
select {schema}.batches_close($1::uuid, $2::boolean)
