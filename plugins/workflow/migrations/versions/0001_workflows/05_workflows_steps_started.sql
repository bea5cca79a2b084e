-- What should have a job: for the sweep, and to see whether anything runs.
create index workflows_steps_started on {schema}.workflows_steps (workflow_id, name) where state = 1
