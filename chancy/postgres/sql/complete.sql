-- Ends one attempt as succeeded, in a transaction of the job's; gives its id, or no row if the lease
-- is gone. Index: the primary key of jobs. Locks: the row of the job, until the transaction ends:
-- whoever wants to settle it waits so long. So the server ends the session if it is idle in the
-- transaction for 10 seconds, as one is that is frozen. Not to be repeated after the commit.
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
