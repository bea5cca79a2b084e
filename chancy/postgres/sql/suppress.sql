-- Holds the guard of a queue's notifications for $2 seconds, unless another transaction has it: see
-- wake. Pushes in transactions of callers notify nevertheless. Changes nothing.
select case
  when pg_try_advisory_xact_lock(hashtext({schema}.channel()), hashtext($1::text))
  then pg_sleep($2::double precision)
end
