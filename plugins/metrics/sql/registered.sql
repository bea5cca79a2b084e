-- A row if the worker $1 is registered. Index: the primary key of workers. No locks. Safe to repeat.
select 1
from {schema}.workers
where id = $1::uuid
