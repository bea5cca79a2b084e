-- The number of steps of a workflow by state, without undo steps.
-- Index: the primary key of workflows_steps; all steps of the workflow. No locks. Safe to repeat.
select s.state, count(*)::int
from {schema}.workflows_steps as s
where s.workflow_id = $1::uuid
  and s.undoes is null
group by s.state
