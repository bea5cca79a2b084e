-- Which of these jobs, whose attempts have just been released, were cancelled instead because they
-- were requested to stop. Index: the primary key of jobs, once for each. No locks. Safe to repeat.
select u.id
from unnest($1::uuid[]) as u (id)
where not exists (
  select
  from {schema}.jobs as j
  where j.id = u.id
  offset 0)
