-- What an idle worker has to know; see the function. Index: jobs_pending, jobs_set_aside,
-- jobs_stopping, workers_crowd and the primary keys. Locks: the row of the worker, rarely. Safe to
-- repeat.
select waiting, stopping, place, crowd, full_queues, full_shares, queues_version, resumes_s, took_s
from {schema}.survey($1::uuid, $2::text[], $3::boolean)
