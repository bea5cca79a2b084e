-- The time of the server, and the greatest id of an unfinished job. Index: the primary key of jobs,
-- backwards. No locks. Safe to repeat.
select {schema}.utc(clock_timestamp()), (select j.id from {schema}.jobs as j order by j.id desc limit 1)
