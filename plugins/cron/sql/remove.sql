-- Deletes an entry and its history; its jobs stay. Index: the primary keys. Locks: its row, then
-- its ticks. Safe to repeat.
with gone as (
  delete from {schema}.cron_entries
  where name = $1::text
  returning name),
forgotten as (
  delete from {schema}.cron_ticks as t
  using gone as g
  where t.entry = g.name)
select name
from gone
