-- The last position that was drawn; null if there is none. Then the id of the oldest transaction in
-- progress, and that of the next one. No index, no locks. Safe to repeat.
select pg_sequence_last_value('{schema}.positions'),
  pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
  pg_snapshot_xmax(pg_current_snapshot())::text::bigint
