-- Entries by their next due time.
create index cron_entries_next on {schema}.cron_entries (next_at, name)
where paused_at is null
