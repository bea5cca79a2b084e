-- Updates a workflow that fails, has failed or compensates when one of its steps has ended: it
-- begins to be undone, or has failed, once nothing runs; or it continues once no step is failed any
-- more, unless some of its steps were purged: then it could not end. p_apart: leave the steps that
-- begin then to workflows_proceed. Returns how many pieces are left this way.
-- Index: the primary keys. Locks: the workflow; as its callees. Safe to repeat.
create function {schema}.workflows_turn(p_id uuid, p_apart boolean) returns int
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now {schema}.workflows := (select w from {schema}.workflows w where w.id = p_id);
begin
  if v_now.state = 2 and not v_now.undoing and v_now.failed > 0 then
    return {schema}.workflows_compensate(p_id, p_apart);
  elsif v_now.state = 2 and not v_now.undoing
    or v_now.state in (3, 5) and (v_now.failed <= 0 or v_now.undoing and not exists (
    select from {schema}.workflows_steps s
    where s.workflow_id = p_id and s.state in (5, 6) and s.undoes is not null)) then
    if v_now.finished_at is not null and v_now.steps > (
        select count(*) from {schema}.workflows_steps s where s.workflow_id = p_id) then
      return 0;
    end if;
    update {schema}.workflows w
    set state = case when w.undoing then 2 else 1 end, finished_at = null,
      error = case when w.undoing then w.error end
    where w.id = p_id;
    return {schema}.workflows_resume(p_id, p_apart);
  elsif v_now.state = 3 and not {schema}.workflows_runs(p_id) then
    update {schema}.workflows w set state = 5, finished_at = clock_timestamp() where w.id = p_id;
    perform {schema}.notify_finished(a.id) from {schema}.awaited a where a.id = p_id;
  end if;
  return 0;
end
$$
