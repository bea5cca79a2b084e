-- Ends the pause of an entry: ticks count from now on, even if the last one is ahead of the clock of
-- the server, which was set back. An entry that is not paused keeps its ticks.
-- Index: the primary key. Locks: its row. Safe to repeat.
update {schema}.cron_entries
set
  from_at = case when paused_at is null then from_at else clock_timestamp() end,
  last_tick = case when paused_at is null or last_tick < clock_timestamp() then last_tick end,
  next_at = case when paused_at is null then next_at else '-infinity' end,
  paused_at = null,
  revision = revision + 1,
  updated_at = clock_timestamp()
where name = $1::text
returning 1
