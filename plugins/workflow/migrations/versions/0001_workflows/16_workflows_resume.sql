-- Resumes a workflow: starts the steps that wait for nothing any more and have no job, after a
-- failed step was run again with success. p_apart: leave them to workflows_proceed, in pieces of
-- 1,000, so that only the steps that the server refuses to start fail. Returns the number of
-- pieces.
-- Index: the primary keys, finished_jobs_id; all steps of the workflow. Locks: its pieces that are
-- left to be started; the caller holds the workflow exclusively. Safe to repeat.
create function {schema}.workflows_resume(p_id uuid, p_apart boolean) returns int
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  v_left int := 0;
  v_names text[] := array(
    select s.name
    from {schema}.workflows_steps s
    where s.workflow_id = p_id and s.state = 0
      and (s.undoes is not null) = (select w.undoing from {schema}.workflows w where w.id = p_id)
      -- workflows_compensate has given the steps of the undoing another predecessor, or none.
      and (s.undoes is null or s.previous is distinct from s.undoes)
      and {schema}.workflows_ready(p_id, s.name, s.needs, s.previous)
      and not exists (select from {schema}.jobs j where j.id = s.job_id)
      and not exists (select from {schema}.finished_jobs f where f.id = s.job_id)
    order by s.place);
begin
  delete from {schema}.workflows_starts t where t.workflow_id = p_id;
  if p_apart then
    insert into {schema}.workflows_starts (workflow_id, names)
    select p_id, array_agg(u.name order by u.place)
    from unnest(v_names) with ordinality as u (name, place)
    group by (u.place - 1) / 1000;
    get diagnostics v_left = row_count;
  else
    perform {schema}.workflows_begin(array_fill(p_id, array[cardinality(v_names)]), v_names);
  end if;
  perform {schema}.workflows_finish(array[p_id]);
  return v_left;
end
$$
