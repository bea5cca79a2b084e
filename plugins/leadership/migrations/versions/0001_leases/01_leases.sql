-- The current leader and the end of its lease. One row, written every few seconds by its holder.
-- Logged: a term that began at 1 again after a crash would be no fence. fillfactor 50: a renewal
-- stays on its page.
create table {schema}.leadership_leases (
  name text primary key,
  holder uuid not null,
  term bigint not null,
  renewed_at timestamptz not null,
  expires_at timestamptz not null
) with (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 1000
)
