-- Which of these steps of a workflow are there, and which step added them.
-- Index: the primary key of workflows_steps. No locks. Safe to repeat.
select s.name, s.added_by
from {schema}.workflows_steps as s
where s.workflow_id = $1::uuid
  and s.name = any ($2::text[])
