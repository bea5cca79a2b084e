-- The last $2 lines of a job, the last one first. Index: the primary key, backwards. No locks. Safe to
-- repeat.
select l.number, l.at at time zone 'utc', l.attempt, l.level, l.total, l.line
from {schema}.job_logs as l
where l.job_id = $1::uuid
order by l.number desc
limit $2::int
