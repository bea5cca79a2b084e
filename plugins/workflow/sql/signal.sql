-- Sends a signal to a workflow; see the function. Index: the primary keys. Locks: the workflow,
-- exclusively. Safe to repeat.
select {schema}.workflows_signal($1::uuid, $2::text, $3::text)
