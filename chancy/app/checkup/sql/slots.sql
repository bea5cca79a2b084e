-- Replication slots without a reader, and the bytes of WAL that each of them retains. Reads the
-- views of the server. No locks. Safe to repeat.
select
  s.slot_name::text,
  s.slot_type,
  case when pg_is_in_recovery() then 0
    else coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0) end::bigint
from pg_catalog.pg_replication_slots as s
where not s.active
  and (s.restart_lsn is not null or s.xmin is not null or s.catalog_xmin is not null)
order by 3 desc, 1
limit 6
