-- Which of these jobs are still in the outbox of Redis.
-- Index: none: the whole outbox, which is short while Redis is available. No locks. Safe to repeat.
select o.id
from {schema}.redis_outbox as o
where o.id = any ($1::uuid[])
