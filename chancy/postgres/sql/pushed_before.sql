-- Which of these jobs exist, finished or not. Run before a push whose response was lost is
-- repeated. Index: the primary key of jobs, finished_jobs_id. No locks. Safe to repeat.
select u.id
from unnest($1::uuid[]) as u (id)
where exists (
    select
    from {schema}.jobs as j
    where j.id = u.id)
  or exists (
    select
    from {schema}.finished_jobs as f
    where f.id = u.id)
