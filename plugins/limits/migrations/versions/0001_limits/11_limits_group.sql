-- Returns the group of a partition for a rule: the value of its path; '' for the whole queue.
create function {schema}.limits_group(p_key text, p_by_no int, p_bys int) returns text
language sql immutable parallel safe
return case when p_by_no = 0 then '' when p_bys = 1 then p_key else p_key::jsonb ->> (p_by_no - 1) end
