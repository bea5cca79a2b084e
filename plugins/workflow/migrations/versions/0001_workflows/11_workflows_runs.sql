-- Returns whether a step of a workflow in which nothing begins any more has a job that has not
-- ended, or whose outcome is not reported yet, as after a failed hook. The
-- function stores the first such step, and resumes from there at the next call: none before it runs
-- again. So a large workflow is scanned once, and not with each completion.
-- Index: the primary keys, finished_jobs_id; steps of the workflow from that one on. Locks: none
-- but the workflow, which the caller holds exclusively.
create function {schema}.workflows_runs(p_id uuid) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
declare
  v_before text := (select w.runs from {schema}.workflows w where w.id = p_id);
  v_first text;
begin
  select s.name into v_first
  from {schema}.workflows_steps s
  where s.workflow_id = p_id and s.name >= coalesce(v_before, '') collate "C" and s.state = 0
    and s.func is not null
    and (exists (select from {schema}.jobs j where j.id = s.job_id offset 0)
      or s.undoes is null and {schema}.workflows_ready(p_id, s.name, s.needs, s.previous)
        and exists (select from {schema}.finished_jobs f where f.id = s.job_id offset 0))
  order by s.workflow_id, s.name
  limit 1;
  if v_first is distinct from v_before then
    update {schema}.workflows w set runs = v_first where w.id = p_id;
  end if;
  return v_first is not null;
end
$$
