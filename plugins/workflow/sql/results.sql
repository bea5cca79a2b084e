-- The results of the last steps of a workflow, by place. Index: the primary key of workflows_steps;
-- all steps of the workflow. No locks. Safe to repeat.
select s.name, s.func, s.result::text
from {schema}.workflows_steps as s
where s.workflow_id = $1::uuid
  and s.next = '{}'
  and s.joins = '{""}'
  and s.undoes is null
order by s.place
