-- Which of these steps of a workflow exist, and the steps that added them.
-- Index: the primary key of workflows_steps, once for each. No locks. Safe to repeat.
select s.name, s.added_by
from unnest($2::text[]) as u (name)
cross join lateral (
  select o.name, o.added_by
  from {schema}.workflows_steps as o
  where o.workflow_id = $1::uuid
    and o.name = u.name
  offset 0) as s
