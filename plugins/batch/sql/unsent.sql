-- Which of these jobs are in the outbox of Redis yet.
-- Index: none, the whole of it, which is short while Redis is there. No locks. Safe to repeat.
select o.id
from {schema}.redis_outbox as o
where o.id = any ($1::uuid[])
