-- Resumes a paused queue. Index: the primary key of queues. Locks: its row; see the function
-- lock_queue. Safe to repeat.
with resumed as (
  update {schema}.queues
  set paused_at = null, resume_at = null, updated_at = clock_timestamp()
  where name = $1::text
    and {schema}.lock_queue($1::text)
  returning name)
select pg_notify({schema}.channel(), 'q:'), pg_notify({schema}.channel(), 'w:' || name)
from resumed
