-- Returns the meta of the job of a step: its own keys, and the step that it belongs to. Inlined by
-- the planner. Built as a string: 2.5 µs where jsonb_build_object takes 4.5.
create function {schema}.workflows_meta(p_meta jsonb, p_id uuid, p_name text, p_run int) returns jsonb
language sql stable
return coalesce(p_meta, '{}') || concat(
  '{"workflow": {"id": "', p_id, '", "run": ', p_run, ', "step": ', to_json(p_name), '}}')::jsonb
