-- Extends the lapse of the named entries, which are still in the code of a worker, to $2 seconds
-- from now. Removed entries and entries that do not lapse are not changed. Index: the primary key.
-- Locks: their rows, skipping locked ones, which the next call extends. Safe to repeat.
with mine as (
  select e.name
  from {schema}.cron_entries as e
  where e.name = any($1::text[])
    and e.lapses_at is not null
  for update skip locked)
update {schema}.cron_entries as e
set lapses_at = clock_timestamp() + $2::float8 * interval '1 second'
from mine as m
where m.name = e.name
