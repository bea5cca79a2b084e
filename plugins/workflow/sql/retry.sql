-- Runs steps of a workflow again; see the function. Index: the primary keys; all its steps.
-- Locks: the workflow, exclusively; these steps. Not to be repeated: it would run them once more.
select {schema}.workflows_retry($1::uuid, $2::text)
