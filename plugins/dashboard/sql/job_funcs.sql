-- The functions of the jobs that a source ($1) returns for a queue ($2) and a worker ($3), of up to $4
-- jobs after the position $5, which is JSON. Index: see the function dashboard_scan. No locks.
-- Safe to repeat.
select distinct s.func
from {schema}.dashboard_scan($1, $2, $3, $4::int, $5::jsonb) as s
