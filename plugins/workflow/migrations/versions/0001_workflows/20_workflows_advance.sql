-- Records the outcomes of steps, and starts the steps that they enable. p_states: 4, 5 or 6, as the
-- states of jobs; p_results: JSON; p_errors: JSON of failures; p_took_s: how long the steps ran. A
-- step counts once, in its current run. p_alone: whether any of them has not succeeded, or had
-- failed before. p_most: the number of steps of each workflow to start at once, and eight times as
-- many in all; the others are left to workflows_proceed, in pieces of the same size. Returns the
-- number of pieces. Null: all are started. 0: none, so that a step that the server refuses to start
-- fails alone; pieces have 1,000 steps then. Unless it is null, steps enabled by signals that
-- arrived early are left to pieces after 200 rounds: a settlement has 5 s.
-- Index: the primary keys, once for each step and join. The condition on the workflow is written so
-- that only they serve: a plain condition lets the planner compare each step with the whole of a
-- table that looks empty.
-- Locks, in this order: workflows by id, steps in the given order, joins by id and name. Steps that
-- complete at the same time share the lock of their workflow, unless signals arrived early: the
-- steps enabled by these are taken in rounds, out of that order. Safe to repeat.
create function {schema}.workflows_advance(
  p_ids uuid[], p_names text[], p_runs int[], p_jobs uuid[], p_states smallint[], p_results text[],
  p_errors text[], p_took_s float8[], p_alone boolean, p_most int default null
) returns int
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
declare
  v_ids uuid[]; v_names text[]; v_failed uuid[]; v_failed_names text[];
  v_over uuid[]; v_left int := 0; v_pieces int; v_undoing uuid[];
  v_all uuid[] := p_ids; v_heard uuid[] := '{}'; v_round int := 0;
begin
  perform {schema}.workflows_lock_soon(p_ids, p_alone);
  v_undoing := array(
    select w.id from {schema}.workflows w where w.id = any (p_ids) and w.undoing);
  if p_alone then
    perform {schema}.workflows_forgive(p_ids, p_names, p_runs, p_jobs, p_states);
  end if;
  -- Once, and once more for each round of steps whose signals came before they began to wait.
  loop
    with done as (
      update {schema}.workflows_steps s
      set state = case when d.state < 5 or s.on_failure <> 1 then d.state
          -- A step that its cancelled workflow has stopped did not fail: a retry runs it again.
          when d.state = 6 and exists (
            select from {schema}.workflows w where w.id = d.id and w.state = 6) then 6
          else 7 end,
        job_id = coalesce(d.job, s.job_id), result = d.result::jsonb, error = d.error::jsonb,
        finished_at = clock_timestamp(), took_s = d.took_s
      from unnest(p_ids, p_names, p_runs, p_jobs, p_states, p_results, p_errors, p_took_s)
        as d (id, name, run, job, state, result, error, took_s)
      where s.workflow_id = any (array[d.id]) and s.name = d.name and s.run = d.run
        and s.state = 0
      returning s.workflow_id as id, s.name, s.state, s.next, s.joins, s.undoes
    ), good as (
      select d.id, d.next, d.joins
      from done d
      where d.state in (4, 7)
        -- While a workflow is undone, only its undo steps go on.
        and (d.undoes is not null or d.id <> all (v_undoing))
    ), counted as (
      update {schema}.workflows_joins j
      set missing = j.missing - l.count
      from (
        -- Most steps that end at once have the same joins.
        select t.id, t.name, sum(t.count)::int as count
        from (
          select g.id, unnest(g.joins) as name, count(*) as count
          from good g
          group by g.id, g.joins) as t
        group by t.id, t.name order by t.id, t.name) as l
      where j.workflow_id = any (array[l.id]) and j.name = l.name
      returning j.workflow_id as id, j.name, j.missing
    ), let_go as (
      select g.id, unnest(g.next) as name from good g
      union all
      select c.id, c.name from counted c where c.missing <= 0 and c.name <> '')
    select l.ids, l.names, c.over, f.ids, f.names
    into v_ids, v_names, v_over, v_failed, v_failed_names
    from (select array_agg(l.id) as ids, array_agg(l.name) as names from let_go l) as l,
      (select array_agg(c.id) as over from counted c where c.missing <= 0 and c.name = '') as c,
      (select array_agg(d.id) as ids, array_agg(d.name) as names
       from done d where d.state in (5, 6)) as f;
    -- Before anything starts: a failure keeps the steps that were released beside it from starting.
    if v_failed is not null then
      perform {schema}.workflows_fail(v_failed, v_failed_names);
    end if;
    if v_over is not null then
      perform {schema}.workflows_finish(v_over);
    end if;
    exit when v_ids is null;
    if p_most < cardinality(v_names) then
      with those as (
        select l.*, row_number() over (partition by l.id order by l.place) as nth
        from unnest(v_ids, v_names) with ordinality as l (id, name, place)
      ), pieces as (
        insert into {schema}.workflows_starts (workflow_id, names)
        select t.id, array_agg(t.name order by t.place)
        from those t
        where t.nth > p_most or t.place > 8 * p_most
        group by t.id, (t.nth - 1) / coalesce(nullif(p_most, 0), 1000)
        returning id)
      select array_agg(t.id order by t.place), array_agg(t.name order by t.place),
        (select count(*) from pieces)
      into v_ids, v_names, v_pieces
      from those t where t.nth <= p_most and t.place <= 8 * p_most;
      v_left := v_left + v_pieces;
    end if;
    select h.o_ids, h.o_names, h.o_runs, h.o_payloads into p_ids, p_names, p_runs, p_results
    from {schema}.workflows_start(v_ids, v_names) h;
    exit when p_ids is null;
    v_round := v_round + 1;
    if v_round > 200 and p_most is not null then
      insert into {schema}.workflows_starts (workflow_id, names)
      select u.id, array_agg(u.name) from unnest(p_ids, p_names) as u (id, name) group by u.id;
      get diagnostics v_pieces = row_count;
      v_left := v_left + v_pieces;
      exit;
    end if;
    -- Not in each round: each further version of a row in one transaction slows down its lookup.
    v_heard := v_heard || p_ids;
    if cardinality(v_heard) > 500 then
      perform {schema}.workflows_heard(v_heard);
      v_heard := '{}';
    end if;
    p_jobs := null; p_errors := null; p_took_s := null;
    p_states := array_fill(4::smallint, array[cardinality(p_ids)]);
  end loop;
  if v_heard <> '{}' then
    perform {schema}.workflows_heard(v_heard);
  end if;
  return v_left + coalesce((
    select sum({schema}.workflows_turn(w.id, coalesce(p_most = 0, false)))
    from (
      select o.id from {schema}.workflows o
      where o.id = any (v_all) and o.state in (2, 3, 5)
      order by o.id
      offset 0) as w), 0);
end
$$
