-- Returns the state in which a job enters, or enters again: held (3) while its meta has the key `hold`,
-- scheduled (2) until p_due, else pending (0). Every statement that inserts jobs uses it, and every
-- one that promotes them, so that a job on hold gets past none of them. The function has no settings
-- of its own, so that it is inlined, and costs a push nothing; it accesses no table.
create function {schema}.admit(p_due timestamptz, p_meta jsonb) returns smallint
language sql volatile
return case when p_meta ? 'hold' then 3 when p_due > clock_timestamp() then 2 else 0 end
