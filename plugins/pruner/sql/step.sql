-- One step of a rule through the history of a queue; see the function. Index: finished_jobs_queue,
-- finished_jobs_id. Locks: the deleted rows, for 100 ms at most. Safe to repeat.
select seen, matched, removed, reached, latest
from {schema}.pruner_step(
  $1::text, $2::timestamptz, $3::timestamptz, $4::timestamptz, $5::smallint, $6::text, $7::bigint,
  $8::int, $9::boolean)
