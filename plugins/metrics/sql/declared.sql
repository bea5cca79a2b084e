-- The declared queues, each with the name of its broker. No index: the table is small. No locks. Safe
-- to repeat.
select q.name, q.broker
from {schema}.queues as q
