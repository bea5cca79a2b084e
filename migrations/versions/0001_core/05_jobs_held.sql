-- Serves counts of held jobs by queue, and the first of each: those set aside and those that rules hold
-- come before those on hold, which wait for nothing that workers do.
-- Statements that move held jobs say `state = 3`, so that the planner never takes this index for them.
create index jobs_held on {schema}.jobs (queue, coalesce(meta ? 'hold', false), pos)
where state + 0 = 3
