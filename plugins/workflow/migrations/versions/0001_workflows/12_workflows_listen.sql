-- Lets steps wait for their signals, some of them for a while only: delay_s. One that has come already ends
-- its step here and now. A timer that was due while the workflow did not go on begins anew.
-- Index: the primary keys. Locks: the timers by id and name; by the caller: the workflows; then as workflows_advance.
-- Safe to repeat.
create function {schema}.workflows_listen(p_ids uuid[], p_names text[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_ids uuid[]; v_names text[]; v_runs int[]; v_payloads text[];
begin
  insert into {schema}.workflows_timers as t (workflow_id, name, run, due_at)
  select s.workflow_id, s.name, s.run, clock_timestamp() + s.delay_s * interval '1 second'
  from unnest(p_ids, p_names) as r (id, name)
  join {schema}.workflows_steps s on s.workflow_id = r.id and s.name = r.name
  where s.delay_s is not null and not exists (
    select from {schema}.workflows_signals g where g.workflow_id = r.id and g.name = r.name)
  order by s.workflow_id, s.name
  on conflict (workflow_id, name, run) do update set due_at = excluded.due_at
  where t.due_at <= clock_timestamp();
  select array_agg(g.workflow_id), array_agg(g.name), array_agg(s.run), array_agg(g.payload::text)
  into v_ids, v_names, v_runs, v_payloads
  from unnest(p_ids, p_names) as r (id, name)
  join {schema}.workflows_signals g on g.workflow_id = r.id and g.name = r.name
  join {schema}.workflows_steps s on s.workflow_id = r.id and s.name = r.name;
  if v_ids is not null then
    perform {schema}.workflows_advance(v_ids, v_names, v_runs, null,
      array_fill(4::smallint, array[cardinality(v_ids)]), v_payloads, null, null, false);
  end if;
end
$$
