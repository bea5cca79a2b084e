-- Cancels a workflow, and returns its steps whose jobs are not finished; see the function.
-- Index: the primary keys; all its steps. Locks: the workflow, exclusively. Safe to repeat.
select name, run, job_id
from {schema}.workflows_cancel($1::uuid, $2::text, $3::text, $4::int)
