-- Ends those of the given workflows whose last step has ended; notifies the clients that wait for
-- them. A compensating workflow ends with its last undo, not with its last step.
-- Index: the primary keys. Locks: the workflows by id. Safe to repeat.
create function {schema}.workflows_finish(p_ids uuid[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_ended uuid[];
begin
  with ended as (
    update {schema}.workflows w
    set state = case w.state when 1 then 4 else 7 end, finished_at = clock_timestamp()
    from (select distinct u.id from unnest(p_ids) as u (id) order by u.id) as u
    where w.id = u.id and (w.state = 1 or w.undoing and w.state = 2)
      and exists (
        select from {schema}.workflows_joins j
        where j.workflow_id = w.id and j.name = '' and j.missing <= 0)
    returning w.id)
  select array_agg(e.id) into v_ended from ended e;
  perform {schema}.notify_finished(a.id)
  from {schema}.awaited a where a.id = any (v_ended);
end
$$
