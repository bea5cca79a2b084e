-- The meta of the job of a step: its own, and which step it is. Inlined by the planner.
create function {schema}.workflows_meta(p_meta jsonb, p_id uuid, p_name text, p_run int) returns jsonb
language sql stable
return case when p_meta is null
  then jsonb_build_object('workflow', jsonb_build_object('id', p_id, 'step', p_name, 'run', p_run))
  else p_meta || jsonb_build_object(
    'workflow', jsonb_build_object('id', p_id, 'step', p_name, 'run', p_run))
end
