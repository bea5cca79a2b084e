-- Up to $3 lines of a job after the number $2, in order. Index: the primary key. No locks. Safe to
-- repeat.
select l.number, l.at at time zone 'utc', l.attempt, l.level, l.total, l.line
from {schema}.job_logs as l
where l.job_id = $1::uuid
  and l.number > $2::bigint
order by l.number
limit $3::int
