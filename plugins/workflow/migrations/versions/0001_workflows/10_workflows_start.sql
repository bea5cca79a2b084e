-- Starts those of the given steps that wait for nothing any more, in running workflows: pushes their
-- jobs and wakes the workers of their queues. A step without a job waits for a signal; one that has come
-- already ends it here and now.
-- Index: the primary keys. Locks: the steps in the order given; by the caller: their workflows.
-- Safe to repeat: what has begun is passed over.
create function {schema}.workflows_start(p_ids uuid[], p_names text[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  v_queues text[];
  v_ids uuid[]; v_names text[]; v_runs int[]; v_payloads text[];
begin
  with begun as (
    update {schema}.workflows_steps s
    set state = 1, started_at = clock_timestamp()
    from unnest(p_ids, p_names) as r (id, name)
    where s.workflow_id = r.id and s.name = r.name and s.state = 0
      and (s.needs < 2 or (
        select j.missing = 0 from {schema}.workflows_joins j
        where j.workflow_id = r.id and j.name = r.name))
      and (select w.state from {schema}.workflows w where w.id = r.id)
        = case when s.undoes is null then 1 else 2 end
    returning s.*, coalesce(s.run_at, clock_timestamp() + s.delay_s * interval '1 second') as due
  ), pushed as (
    insert into {schema}.jobs (id, pos, state, queue, priority, func, arguments, run_at,
      max_attempts, limits, meta)
    select b.job_id, nextval('{schema}.positions'),
      case when b.due > clock_timestamp() then 2 else 0 end, b.queue, b.priority, b.func,
      case when b.froms is null then b.arguments
        else {schema}.workflows_arguments(b.workflow_id, b.arguments, b.froms) end,
      b.due, b.max_attempts, b.limits, coalesce(b.meta, '{}') || jsonb_build_object(
        'workflow', jsonb_build_object('id', b.workflow_id, 'step', b.name, 'run', b.run))
    from begun b
    where b.func is not null
    on conflict (id) do nothing
    returning queue, state
  ), told as (
    select b.workflow_id, b.name, b.run, g.payload
    from begun b
    join {schema}.workflows_signals g on g.workflow_id = b.workflow_id and g.name = b.name
    where b.func is null)
  select (select array_agg(distinct p.queue) filter (where p.state = 0) from pushed p),
    array_agg(t.workflow_id), array_agg(t.name), array_agg(t.run), array_agg(t.payload::text)
  into v_queues, v_ids, v_names, v_runs, v_payloads from told t;
  perform {schema}.wake(q.name, true) from unnest(v_queues) as q (name);
  if v_ids is not null then
    perform {schema}.workflows_advance(v_ids, v_names, v_runs, null,
      array_fill(4::smallint, array[cardinality(v_ids)]), v_payloads, null, false);
  end if;
end
$$
