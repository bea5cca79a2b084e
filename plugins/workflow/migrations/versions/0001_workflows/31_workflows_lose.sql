-- Fails steps that were seen without a job, unless they have one by now, or cannot have one yet:
-- they are checked again under the lock of their workflow, in which nothing begins meanwhile.
-- p_errors: JSON. Returns the number of failed steps.
-- Index: the primary keys, finished_jobs_id, once for each step. Locks: the workflows by id,
-- exclusively; then as workflows_advance. Safe to repeat.
create function {schema}.workflows_lose(p_ids uuid[], p_names text[], p_runs int[], p_errors text[])
returns int
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
declare
  v_ids uuid[]; v_names text[]; v_runs int[]; v_jobs uuid[]; v_errors text[];
begin
  perform {schema}.workflows_lock(p_ids, true);
  select array_agg(l.id order by l.place), array_agg(l.name order by l.place),
    array_agg(l.run order by l.place), array_agg(s.job_id order by l.place),
    array_agg(l.error order by l.place)
  into v_ids, v_names, v_runs, v_jobs, v_errors
  from unnest(p_ids, p_names, p_runs, p_errors) with ordinality as l (id, name, run, error, place)
  cross join lateral (
    select o.job_id
    from {schema}.workflows_steps o
    join {schema}.workflows w on w.id = o.workflow_id
    where o.workflow_id = l.id and o.name = l.name and o.run = l.run and o.state = 0
      and (w.state = 1 or w.state = 2 and w.undoing)
    offset 0) s
  where not exists (select from {schema}.jobs j where j.id = s.job_id)
    and not exists (select from {schema}.finished_jobs f where f.id = s.job_id)
    and not exists (select from {schema}.workflows_starts t where t.workflow_id = l.id);
  if v_ids is null then
    return 0;
  end if;
  perform {schema}.workflows_advance(v_ids, v_names, v_runs, v_jobs,
    array_fill(5::smallint, array[cardinality(v_ids)]), null, v_errors, null, true, 0);
  return cardinality(v_ids);
end
$$
