-- The lanes (queue, priority) with pending jobs, at most $1; see the function. Index:
-- jobs_pending. No locks. Safe to repeat.
select queue, priority
from {schema}.reprioritize_lanes($1::int)
