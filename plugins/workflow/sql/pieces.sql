-- Up to $1 pieces of steps left to start, by workflow.
-- Index: the primary keys. Locks: the workflows in share mode, skipping locked ones. Safe to repeat.
select t.workflow_id, t.id, t.names
from {schema}.workflows_starts as t
join {schema}.workflows as w on w.id = t.workflow_id
order by t.workflow_id, t.id
limit $1::int
for share of w skip locked
