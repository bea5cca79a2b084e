-- Connects newly added steps to existing ones: p_from releases p_to; the last of the added steps,
-- p_ends, release p_before, or the end of the workflow.
-- Each step is found by its name, and never among all steps of the workflow: 50,000 for which
-- 50,000 wait.
-- Index: the primary keys. Locks: these steps and their joins; the caller holds the workflow
-- exclusively.
create function {schema}.workflows_attach(
  p_id uuid, p_from text[], p_to text[], p_ends text[], p_before text[]
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  v_ends int := cardinality(p_ends);
begin
  update {schema}.workflows_steps s
  set next = s.next || coalesce(e.next, '{}'), joins = s.joins || coalesce(e.joins, '{}')
  from (select p_id as id, e.name, array_agg(e.other) filter (where o.needs = 1) as next,
          array_agg(e.other) filter (where o.needs > 1) as joins
        from unnest(p_from, p_to) as e (name, other)
        cross join lateral (
          select o.needs from {schema}.workflows_steps o
          where o.workflow_id = p_id and o.name = e.other
          offset 0) as o
        group by e.name offset 0) as e
  where s.workflow_id = e.id and s.name = e.name;
  update {schema}.workflows_joins j
  set missing = j.missing - e.count
  from (select p_id as id, e.other, count(*) as count
        from unnest(p_from, p_to) as e (name, other)
        cross join lateral (
          select from {schema}.workflows_steps o
          where o.workflow_id = p_id and o.name = e.name and o.state in (4, 7)
          offset 0) as s
        group by e.other offset 0) as e
  where j.workflow_id = e.id and j.name = e.other;
  if cardinality(p_before) = 0 then
    update {schema}.workflows_joins j
    set missing = j.missing + v_ends
    where j.workflow_id = p_id and j.name = '';
    return;
  end if;
  update {schema}.workflows_steps s
  set joins = p_before
  from (select p_id as id, u.name from unnest(p_ends) as u (name) offset 0) as n
  where s.workflow_id = n.id and s.name = n.name;
  insert into {schema}.workflows_joins as j (workflow_id, name, missing)
  select p_id, u.name, 1 + v_ends
  from (select distinct b.name from unnest(p_before) as b (name) order by b.name) as u
  on conflict (workflow_id, name) do update set missing = j.missing + v_ends;
  -- Steps that waited for one step now wait for several, and are among its joins.
  update {schema}.workflows_steps s
  set next = array(select u.name from unnest(s.next) as u (name) where u.name <> all (b.names)),
    joins = s.joins || b.names
  from (select p_id as id, o.previous, array_agg(o.name) as names
        from (select distinct u.name from unnest(p_before) as u (name)) as u
        cross join lateral (
          select o.name, o.previous from {schema}.workflows_steps o
          where o.workflow_id = p_id and o.name = u.name and o.previous is not null
          offset 0) as o
        group by o.previous offset 0) as b
  where s.workflow_id = b.id and s.name = b.previous;
  update {schema}.workflows_steps s
  set needs = s.needs + v_ends, previous = null
  from (select distinct p_id as id, u.name from unnest(p_before) as u (name) offset 0) as n
  where s.workflow_id = n.id and s.name = n.name;
end
$$
