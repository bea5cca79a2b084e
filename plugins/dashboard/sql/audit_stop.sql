-- Asks the action of the row $1 to stop after its current batch, for the user $2, unless another was
-- first. Index: the primary key. Locks: the row. Safe to repeat.
update {schema}.dashboard_audit
set stopped_by = coalesce(stopped_by, $2::text)
where id = $1::bigint
  and ended_at is null
returning id
