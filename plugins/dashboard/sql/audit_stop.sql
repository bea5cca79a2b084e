-- Asks the action of the row $1 to stop after its current batch. Index: the primary key. Locks: the
-- row. Safe to repeat.
update {schema}.dashboard_audit
set stop_asked = true
where id = $1::bigint
  and ended_at is null
returning id
