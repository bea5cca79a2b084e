-- The states of jobs, finished or not; no row for jobs that are gone. After 8 MiB of results, as
-- stored, it returns jobs as running, which leaves them to a later call.
-- Index: the primary key of jobs, finished_jobs_id. No locks. Safe to repeat.
select
  s.id, case when s.fits then s.state else 1 end, case when s.fits then s.result::text end,
  s.errors -> -1 ->> 'message', s.errors -> -1 -> 'types' ->> 0
from (
  select
    u.id, coalesce(j.state, f.state) as state, f.result, f.errors,
    coalesce(sum(pg_column_size(f.result)) over (
      rows between unbounded preceding and 1 preceding), 0) < 8388608 as fits
  from unnest($1::uuid[]) as u (id)
  left join {schema}.jobs as j on j.id = u.id
  left join lateral (
    select o.state, o.result, o.errors
    from {schema}.finished_jobs as o
    where o.id = u.id
    order by o.finished_at desc
    limit 1) as f on j.id is null
  where j.id is not null
    or f.state is not null) as s
