-- The jobs of each queue that finished after $1, in seconds since 1970, up to 10,001 of each of 250
-- queues. Index: finished_jobs_queue. No locks. Safe to repeat.
select q.name, (
  select count(*)
  from (
    select
    from {schema}.finished_jobs as f
    where f.queue = q.name
      and f.finished_at > to_timestamp($1::float8)
    limit 10001) as c)
from (select name from {schema}.queues order by name limit 250) as q
