-- Wakes all workers of queues. Safe to repeat.
select pg_notify({schema}.channel(), 'w:' || name)
from unnest($1::text[]) as called (name)
