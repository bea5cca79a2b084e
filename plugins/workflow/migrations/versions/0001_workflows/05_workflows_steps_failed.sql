-- What keeps a workflow from going on.
create index workflows_steps_failed on {schema}.workflows_steps (workflow_id, name)
where state in (5, 6)
