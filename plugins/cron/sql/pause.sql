-- Pauses an entry. Index: the primary key. Locks: its row. Safe to repeat.
update {schema}.cron_entries
set
  paused_at = coalesce(paused_at, clock_timestamp()),
  revision = revision + 1,
  updated_at = clock_timestamp()
where name = $1::text
returning 1
