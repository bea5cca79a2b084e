-- Moves workflows with a failed step to failing or compensating: steps whose jobs were pushed
-- continue to their end, also those that wait, and no other step begins. workflows_turn ends the
-- workflows then. If any of the failed steps requests compensation, the workflow compensates,
-- whichever step failed first. A failed undo step ends its workflow at once, because nothing else
-- runs, and waiting clients are notified.
-- Index: the primary keys. Locks: the workflows by id. Safe to repeat.
create function {schema}.workflows_fail(p_ids uuid[], p_names text[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_ids uuid[];
begin
  with failed as (
    select s.workflow_id as id, count(*) as count,
      min('step ' || s.name || ' has failed' || coalesce(
        ': ' || nullif(regexp_replace(s.error ->> 'type', '^.*[.]', ''), '')
        || left(': ' || nullif(split_part(s.error ->> 'message', E'\n', 1), ''), 300), '')) as why,
      bool_or(s.on_failure = 2 and s.undoes is null) as compensate,
      bool_or(s.undoes is not null) as undoing
    from unnest(p_ids, p_names) as f (id, name)
    join {schema}.workflows_steps s on s.workflow_id = f.id and s.name = f.name
    group by s.workflow_id
  ), ended as (
    update {schema}.workflows w
    set failed = w.failed + f.count,
      runs = case when w.state <> 1 then w.runs end,
      state = case
        when w.state in (1, 3) and f.compensate then 2
        when w.state = 1 then 3
        when w.state = 2 and f.undoing then 5
        else w.state end,
      error = coalesce(w.error, f.why),
      finished_at = case when w.state = 2 and f.undoing then clock_timestamp()
        else w.finished_at end
    from (select * from failed order by id) as f
    where w.id = f.id
    returning w.id, w.state)
  select array_agg(e.id) filter (where e.state = 5) into v_ids from ended e;
  perform {schema}.notify_finished(a.id) from {schema}.awaited a where a.id = any (v_ids);
end
$$
