-- Starts those of the given steps that wait for nothing any more, in workflows that run: pushes
-- their jobs, and wakes the workers. A step without a job begins to wait for its signal; returns
-- those whose signal has arrived, as workflows_listen does, for the caller to end.
-- p_guarded: see {schema}.wake; false in a transaction that may stay open.
-- Index: the primary keys, once for each step, however empty the tables look: they are looked up in
-- a subquery that the planner cannot reorder. Locks: none; the caller holds the workflows, and the
-- rows that released the steps. Safe to repeat while the jobs are unfinished.
create function {schema}.workflows_start(
  p_ids uuid[], p_names text[], p_guarded boolean default true,
  out o_ids uuid[], out o_names text[], out o_runs int[], out o_payloads text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_running uuid[] := array(
    select w.id from {schema}.workflows w where w.id = any (p_ids) and w.state = 1);
  v_undoing uuid[] := array(
    select w.id from {schema}.workflows w where w.id = any (p_ids) and w.state = 2 and w.undoing);
  v_queues text[]; v_waits uuid[]; v_waits_names text[];
begin
  with ready as (
    select s.*, coalesce(s.run_at, v_now + s.delay_s * interval '1 second') as due
    from unnest(p_ids, p_names) as r (id, name)
    cross join lateral (
      select * from {schema}.workflows_steps o
      where o.workflow_id = r.id and o.name = r.name
      offset 0) s
    where s.state = 0
      and (s.needs < 2 or (
        select j.missing <= 0 from {schema}.workflows_joins j
        where j.workflow_id = r.id and j.name = r.name))
      and case when s.undoes is null then s.workflow_id = any (v_running)
        else s.workflow_id = any (v_undoing) end
  ), pushed as (
    insert into {schema}.jobs (id, pos, state, queue, priority, func, arguments, run_at,
      max_attempts, limits, meta)
    select r.job_id, nextval('{schema}.positions'), {schema}.admit(r.due, r.meta),
      r.queue, r.priority, r.func,
      case when r.froms is null then r.arguments
        else {schema}.workflows_arguments(r.workflow_id, r.arguments, r.froms) end,
      r.due, r.max_attempts, r.limits,
      {schema}.workflows_meta(r.meta, r.workflow_id, r.name, r.run)
    from ready r
    where r.func is not null
    on conflict (id) do nothing
    returning queue, state)
  select (select array_agg(distinct p.queue) filter (where p.state = 0) from pushed p),
    array_agg(r.workflow_id) filter (where r.func is null),
    array_agg(r.name) filter (where r.func is null)
  into v_queues, v_waits, v_waits_names from ready r;
  perform {schema}.wake(q.name, p_guarded, cardinality(p_ids)) from unnest(v_queues) as q (name);
  if v_waits is not null then
    select h.o_ids, h.o_names, h.o_runs, h.o_payloads into o_ids, o_names, o_runs, o_payloads
    from {schema}.workflows_listen(v_waits, v_waits_names) h;
  end if;
end
$$
