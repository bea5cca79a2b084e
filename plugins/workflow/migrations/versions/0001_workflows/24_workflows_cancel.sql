-- Ends a workflow that runs, fails, or has failed: none of its steps begins any more. p_why: its
-- error, unless it has one. Returns the steps with unfinished jobs, for the caller to cancel, and
-- notifies the waiting clients. With p_step, it ends the workflow only if that step still waits for
-- its signal, in p_run, and its timer is due.
-- Each job is looked up by its id, and never among all jobs: offset prevents a hash join.
-- Index: the primary keys; all steps of the workflow. Locks: the workflow, exclusively.
-- Safe to repeat: it returns unfinished jobs again.
create function {schema}.workflows_cancel(p_id uuid, p_why text, p_step text, p_run int)
returns table (name text, run int, job_id uuid)
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
#variable_conflict use_column
begin
  perform {schema}.workflows_lock(array[p_id], true);
  update {schema}.workflows w
  set state = 6, finished_at = clock_timestamp(), error = coalesce(w.error, p_why)
  where w.id = p_id and w.state in (1, 2, 3, 5)
    and (p_step is null or w.state = 1 and exists (
      select
      from {schema}.workflows_timers t
      join {schema}.workflows_steps s on s.workflow_id = t.workflow_id and s.name = t.name
        and s.run = t.run and s.state = 0
      where t.workflow_id = p_id and t.name = p_step and t.run = p_run
        and t.due_at <= clock_timestamp()));
  if found then
    perform {schema}.notify_finished(a.id) from {schema}.awaited a where a.id = p_id;
  elsif not exists (select from {schema}.workflows w where w.id = p_id and w.state = 6) then
    return;
  end if;
  return query
  select s.name, s.run, s.job_id
  from {schema}.workflows_steps s
  where s.workflow_id = p_id and s.state = 0
    and exists (select from {schema}.jobs j where j.id = s.job_id offset 0)
    and exists (select from {schema}.workflows w where w.id = p_id and w.state = 6);
end
$$
