-- Settles one attempt as succeeded, in a transaction of the job; returns its id, or no row if the
-- lease is gone. Index: the primary key of jobs. Locks: the row of the job until the transaction
-- ends, which blocks other settlements of the job. So the server ends the session if it is idle in
-- the transaction for 10 seconds, as when its process is frozen. Must not be repeated after the
-- commit.
with done as materialized (
  select finish as id
  from {schema}.finish(
    array[$1::uuid], array[$2::uuid], array[4::smallint], array[$3::text],
    null, null, null, null)
), usual as (
  select current_setting('idle_in_transaction_session_timeout')::interval as idle
)
select
  done.id,
  case
    when usual.idle = interval '0' or usual.idle > interval '10s'
    then set_config('idle_in_transaction_session_timeout', '10s', true)
  end
from done, usual
