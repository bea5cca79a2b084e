-- Returns whether a step waits for no other step any more. Index: the primary keys. No locks.
create function {schema}.workflows_ready(p_id uuid, p_name text, p_needs int, p_previous text)
returns boolean
language sql stable
return case
  when p_needs = 0 then true
  when p_needs = 1 then (
    select p.state in (4, 7)
    from {schema}.workflows_steps p
    where p.workflow_id = p_id and p.name = p_previous)
  else (
    select j.missing <= 0
    from {schema}.workflows_joins j
    where j.workflow_id = p_id and j.name = p_name)
end
