-- Begins to undo a compensating workflow once none of its steps runs any more: of the steps that
-- succeeded, the one that ended last is undone first, and each releases the next one. Once begun,
-- it continues by itself. p_apart: leave the first step to workflows_proceed, so that only this
-- step fails where the server refuses to start it. Returns how many pieces are left this way.
-- Each step is found by its name, and never among all steps of the workflow: 20,000 in 0.3 s, not
-- in 73.
-- Index: the primary keys; all steps of the workflow. Locks: the steps that undo; the caller holds
-- the workflow exclusively. Safe to repeat.
create function {schema}.workflows_compensate(p_id uuid, p_apart boolean) returns int
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  v_names text[];
begin
  if {schema}.workflows_runs(p_id) or not exists (
      select from {schema}.workflows w where w.id = p_id and w.state = 2 and not w.undoing) then
    return 0;
  end if;
  update {schema}.workflows w set undoing = true where w.id = p_id;
  v_names := array(
    select u.name
    from {schema}.workflows_steps u
    cross join lateral (
      select o.finished_at, o.place
      from {schema}.workflows_steps o
      where o.workflow_id = p_id and o.name = u.undoes and o.state = 4
      offset 0) as s
    where u.workflow_id = p_id and u.undoes is not null and u.state = 0
    order by s.finished_at desc, s.place desc);
  update {schema}.workflows_joins j
  set missing = case when cardinality(v_names) > 0 then 1 else 0 end
  where j.workflow_id = p_id and j.name = '';
  update {schema}.workflows_steps s
  set next = case when n.next is null then '{}' else array[n.next] end,
    joins = case when n.next is null then array[''] else '{}' end, previous = n.previous,
    needs = case when n.previous is null then 0 else 1 end
  from (select p_id as id, u.name, lead(u.name) over w as next, lag(u.name) over w as previous
        from unnest(v_names) with ordinality as u (name, place) window w as (order by u.place)) as n
  where s.workflow_id = n.id and s.name = n.name;
  if p_apart and cardinality(v_names) > 0 then
    insert into {schema}.workflows_starts (workflow_id, names) values (p_id, v_names[1:1]);
    return 1;
  end if;
  perform {schema}.workflows_start(array[p_id], v_names[1:1]);
  perform {schema}.workflows_finish(array[p_id]);
  return 0;
end
$$
