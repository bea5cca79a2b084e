-- Lets steps wait for their signals, some of them at most delay_s. A timer that became due while
-- the workflow did not advance starts anew. Returns the steps whose signals have already arrived,
-- and up to 500 of the steps behind them that wait for only one of them: the caller completes them
-- at once. o_payloads: JSON.
-- Index: the primary keys, once for each step. Locks: the timers by id and name; taken by the
-- caller: the workflows, exclusively where signals arrived early. Safe to repeat until they have
-- completed.
create function {schema}.workflows_listen(
  p_ids uuid[], p_names text[],
  out o_ids uuid[], out o_names text[], out o_runs int[], out o_payloads text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
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
  with recursive heard (id, name, run, next, payload) as (
    select r.id, r.name collate "C", s.run, s.next, g.payload
    from unnest(p_ids, p_names) as r (id, name)
    cross join lateral (
      select o.payload from {schema}.workflows_signals o
      where o.workflow_id = r.id and o.name = r.name
      offset 0) as g
    cross join lateral (
      select o.run, o.next from {schema}.workflows_steps o
      where o.workflow_id = r.id and o.name = r.name
      offset 0) as s
    union
    select h.id, n.name, s.run, s.next, g.payload
    from heard h
    cross join unnest(h.next) as n (name)
    cross join lateral (
      select o.payload from {schema}.workflows_signals o
      where o.workflow_id = h.id and o.name = n.name
      offset 0) as g
    cross join lateral (
      select o.run, o.next from {schema}.workflows_steps o
      where o.workflow_id = h.id and o.name = n.name and o.state = 0 and o.needs = 1
      offset 0) as s)
  select array_agg(h.id), array_agg(h.name), array_agg(h.run), array_agg(h.payload::text)
  into o_ids, o_names, o_runs, o_payloads
  from (
    select * from heard
    limit cardinality(p_names) + 500) as h;
end
$$
