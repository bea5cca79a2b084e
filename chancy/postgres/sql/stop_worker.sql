-- Requests a worker to shut down. Returns no row if it is not registered. Index: the primary key of
-- workers. Locks: its row, as beat.sql. Safe to repeat.
with asked as (
  update {schema}.workers
  set stop_asked_at = coalesce(stop_asked_at, clock_timestamp())
  where id = $1::uuid
    and set_config('lock_timeout', '2s', true) is not null
  returning id)
select pg_notify({schema}.channel(), 's:' || id)
from asked
