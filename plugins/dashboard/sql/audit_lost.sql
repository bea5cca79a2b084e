-- Ends the actions that have counted nothing for $1 seconds, with the error $2: their process has
-- died. One that goes on all the same ends its row itself. Returns the ids. Index:
-- dashboard_audit_open. Locks: the rows, skipping locked ones. Safe to repeat.
update {schema}.dashboard_audit as a
set ended_at = clock_timestamp(), error = $2::text
from (
  select o.id
  from {schema}.dashboard_audit as o
  where o.ended_at is null
    and o.counted_at < now() - $1::float8 * interval '1 second'
  for update skip locked) as lost
where a.id = lost.id
returning a.id
