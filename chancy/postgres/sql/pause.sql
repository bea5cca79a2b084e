-- Pauses a queue. Index: the primary key of queues. Locks: its row; see the function
-- lock_queue. Safe to repeat.
with paused as (
  update {schema}.queues
  set paused_at = clock_timestamp(), resume_at = $2::timestamptz, updated_at = clock_timestamp()
  where name = $1::text
    and {schema}.lock_queue($1::text)
  returning 1)
select pg_notify({schema}.channel(), 'q:')
from paused
