-- The states of jobs, finished or not; no row for jobs that are gone.
-- Index: the primary key of jobs, finished_jobs_id. No locks. Safe to repeat.
select u.id, coalesce(j.state, f.state), f.result::text, f.errors -> -1 ->> 'message',
  f.errors -> -1 -> 'types' ->> 0
from unnest($1::uuid[]) as u (id)
left join {schema}.jobs as j on j.id = u.id
left join lateral (
  select o.state, o.result, o.errors
  from {schema}.finished_jobs as o
  where o.id = u.id
  order by o.finished_at desc
  limit 1) as f on j.id is null
where j.id is not null
  or f.state is not null
