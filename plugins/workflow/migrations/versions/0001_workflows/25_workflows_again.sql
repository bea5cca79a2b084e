-- Resets steps that have ended to not ended, in a new run, and resumes the workflow. p_let_go: the
-- steps that they had released, once for each. Each step is found by its name, and never among all
-- steps of the workflow.
-- Index: the primary keys. Locks: the steps, joins; the caller holds the workflow exclusively.
create function {schema}.workflows_again(p_id uuid, p_names text[], p_let_go text[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
  delete from {schema}.workflows_signals g
  using (select p_id as id, u.name from unnest(p_names) as u (name) offset 0) as n,
    {schema}.workflows_steps s
  where s.workflow_id = n.id and s.name = n.name and s.state <> 0 and s.func is null
    and g.workflow_id = s.workflow_id and g.name = s.name;
  update {schema}.workflows_steps s
  set state = 0, run = s.run + 1, job_id = {schema}.new_id(), finished_at = null, took_s = null,
    result = null, error = null
  from (select p_id as id, u.name from unnest(p_names) as u (name) offset 0) as n
  where s.workflow_id = n.id and s.name = n.name;
  update {schema}.workflows_joins j
  set missing = j.missing + l.count
  from (select p_id as id, u.name, count(*) as count
        from unnest(p_let_go) as u (name) group by u.name offset 0) as l
  where j.workflow_id = l.id and j.name = l.name;
  update {schema}.workflows w
  set state = case when w.undoing then 2 else 1 end, error = case when w.undoing then w.error end,
    finished_at = null, failed = (
      select count(*) from {schema}.workflows_steps s
      where s.workflow_id = p_id and s.state in (5, 6)),
    early = (
      select count(*) from {schema}.workflows_signals g
      cross join lateral (
        select from {schema}.workflows_steps s
        where s.workflow_id = p_id and s.name = g.name and s.state = 0
        offset 0) as s
      where g.workflow_id = p_id)
  where w.id = p_id;
  perform {schema}.workflows_resume(p_id, false);
end
$$
