-- Adds $2 to the number of jobs of the row $1, and ends it if $3, with the error $4. Returns who
-- has asked it to stop. Index: the primary key. Locks: the row. Not safe to repeat.
update {schema}.dashboard_audit
set
  jobs = jobs + $2::int,
  counted_at = clock_timestamp(),
  ended_at = case when $3::boolean then clock_timestamp() end,
  error = $4::text
where id = $1::bigint
returning stopped_by
