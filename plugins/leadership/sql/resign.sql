-- Ends the lease of $1 and notifies the other workers. Index: the primary key of
-- leadership_leases. Locks: its row. Safe to repeat.
with ended as (
  update {schema}.leadership_leases l
  set expires_at = clock_timestamp()
  where l.name = 'leader' and l.holder = $1::uuid and l.expires_at > clock_timestamp()
  returning 1)
select pg_notify({schema}.channel(), 'l:')::text
from ended
