-- The latest failures among the 200 scheduled jobs that are due first, which will run again. Index:
-- jobs_scheduled. No locks. Safe to repeat.
select
  r.func, r.queue,
  extract(epoch from clock_timestamp() - (r.error ->> 'at')::timestamptz)::float8 as ago_s,
  r.error #>> '{types,0}', left(r.error ->> 'message', 200)
from (
  select j.func, j.queue, j.errors -> -1 as error
  from {schema}.jobs as j
  where j.state = 2
  order by j.run_at
  limit 200) as r
where r.error ->> 'at' is not null
order by ago_s
limit 5
