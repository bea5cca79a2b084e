-- Deletes a queue; its jobs stay. Index: the primary key of queues. Locks: its row; see the function
-- lock_queue. Safe to repeat.
with deleted as (
  delete from {schema}.queues
  where name = $1::text
    and {schema}.lock_queue($1::text)
  returning 1)
select pg_notify({schema}.channel(), 'q:')
from deleted
