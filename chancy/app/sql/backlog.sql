-- The due jobs by queue; see the function. No locks. Safe to repeat.
select b.queue, b.oldest_s, b.cap, b.pending, b.held from {schema}.backlog() as b
