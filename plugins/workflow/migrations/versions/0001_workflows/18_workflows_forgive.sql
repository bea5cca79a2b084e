-- Resets failed steps that now succeed in the same run by another job to not ended: a dead letter
-- was replayed. The same job counts only where it was presumed gone: otherwise its late success is
-- that of an attempt that had lost its lease. Once a workflow is undone, this applies only to steps
-- that undo.
-- Index: the primary keys. Locks: the steps in the order given; the caller holds the workflows
-- exclusively.
create function {schema}.workflows_forgive(
  p_ids uuid[], p_names text[], p_runs int[], p_jobs uuid[], p_states smallint[]
) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
  with forgiven as (
    update {schema}.workflows_steps s
    set state = 0
    from unnest(p_ids, p_names, p_runs, p_jobs, p_states) as d (id, name, run, job, state)
    join {schema}.workflows o on o.id = d.id
    where s.workflow_id = d.id and s.name = d.name and s.run = d.run
      and d.state = 4 and s.state = 5
      and (d.job <> s.job_id or s.error ->> 'type' = 'chancy.JobGone') and (s.undoes is not null) = o.undoing
    returning s.workflow_id as id)
  update {schema}.workflows w
  set failed = w.failed - f.count
  from (select g.id, count(*) as count from forgiven g group by g.id) as f
  where w.id = f.id
$$
