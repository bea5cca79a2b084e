-- Seconds for which the scheduled job that is due first has been due. Index: jobs_scheduled. No
-- locks. Safe to repeat.
select (extract(epoch from clock_timestamp()) - extract(epoch from j.run_at))::float8
from {schema}.jobs as j
where j.state = 2
order by j.run_at
limit 1
