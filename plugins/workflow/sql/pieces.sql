-- Up to $1 pieces of steps left to start, by workflow.
-- Index: the primary key. No locks. Safe to repeat.
select t.workflow_id, t.id, t.names
from {schema}.workflows_starts as t
order by t.workflow_id, t.id
limit $1::int
