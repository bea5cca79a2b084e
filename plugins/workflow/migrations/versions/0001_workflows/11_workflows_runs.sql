-- Whether a step of a workflow has a job that has not ended, here or elsewhere, or whose end is not told
-- yet, as after a hook that failed.
-- Index: the primary keys, finished_jobs_id; all steps of the workflow. No locks.
create function {schema}.workflows_runs(p_id uuid) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
  return exists (
    select from {schema}.workflows_away a
    where a.workflow_id = p_id
  ) or exists (
    select from {schema}.workflows_steps s
    join {schema}.jobs j on j.id = s.job_id
    where s.workflow_id = p_id and s.state = 0
  ) or exists (
    select from {schema}.workflows_steps s
    where s.workflow_id = p_id and s.state = 0 and s.func is not null and s.undoes is null
      and {schema}.workflows_ready(p_id, s.name, s.needs, s.previous)
      and exists (select from {schema}.finished_jobs f where f.id = s.job_id));
end
$$
