-- Queues with the number of their pending jobs, the seconds for which the oldest of them has
-- been due, and the numbers of scheduled and of held jobs, each up to $1: see the function.
-- No locks. Safe to repeat.
select c.queue, c.pending, c.oldest_s, c.scheduled, c.held
from {schema}.dashboard_counts($1::int) as c
