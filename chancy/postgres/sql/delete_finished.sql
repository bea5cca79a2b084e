-- Deletes or counts finished jobs by conditions; see the function. Index: finished_jobs_id. Locks:
-- the rows that it deletes, by id. Safe to repeat.
select matched, removed, reached
from {schema}.delete_finished(
  $1::uuid, $2::smallint[], $3::text, $4::text, coalesce($5::timestamptz, '-infinity'),
  $6::timestamptz, $7::jsonb, $8::text, $9::int, $10::int, $11::boolean)
