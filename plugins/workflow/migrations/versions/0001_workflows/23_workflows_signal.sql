-- Delivers a signal to the step that waits for it, or will wait for it. p_payload: JSON. Returns
-- the outcome: sent, before (there was one, which counts), unknown (no such workflow), no_step,
-- over, late (its step has ended without one). Where the server refuses a step that the signal
-- releases, the released steps are left to the sweep, in which only the refused step fails: the
-- sender of the signal is not affected.
-- Index: the primary keys. Locks: the workflow, exclusively; then as workflows_advance.
-- Safe to repeat.
create function {schema}.workflows_signal(p_id uuid, p_name text, p_payload text) returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_step {schema}.workflows_steps;
  v_state smallint;
begin
  perform {schema}.workflows_lock(array[p_id], true);
  select w.state into v_state from {schema}.workflows w where w.id = p_id;
  if v_state is null then
    return 'unknown';
  end if;
  select * into v_step from {schema}.workflows_steps s
  where s.workflow_id = p_id and s.name = p_name and s.func is null;
  if not found then
    return 'no_step';
  end if;
  if v_step.state <> 0 then
    return case when exists (
      select from {schema}.workflows_signals g where g.workflow_id = p_id and g.name = p_name)
      then 'before' else 'late' end;
  end if;
  if v_state in (6, 7) then
    return 'over';
  end if;
  insert into {schema}.workflows_signals (workflow_id, name, payload)
  values (p_id, p_name, p_payload::jsonb)
  on conflict do nothing;
  if not found then
    return 'before';
  end if;
  if v_state = 1 and {schema}.workflows_ready(p_id, p_name, v_step.needs, v_step.previous) then
    begin
      perform {schema}.workflows_advance(array[p_id], array[p_name], array[v_step.run], null,
        array[4::smallint], array[p_payload], null, null, true);
    exception when others then
      -- Errors that may not recur if the call is repeated, as in chancy.errors: conflicts, lack of
      -- resources, interventions, system errors.
      if left(sqlstate, 2) in ('40', '53', '57', '58') or sqlstate in ('55P03', '0A000') then
        raise;
      end if;
      perform {schema}.workflows_advance(array[p_id], array[p_name], array[v_step.run], null,
        array[4::smallint], array[p_payload], null, null, true, 0);
    end;
  else
    update {schema}.workflows w set early = w.early + 1 where w.id = p_id;
  end if;
  return 'sent';
end
$$
