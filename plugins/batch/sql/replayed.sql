-- Scans up to $3 jobs of batches after ($1, $2), by batch and job, that ended without success: the
-- last replays of their dead letters, with their outcome unless it is reported; null for others.
-- Index: batches_jobs_ended, the primary key of batches_jobs, finished_jobs_id;
-- as the function replays_of.
-- No locks. Safe to repeat.
select s.batch_id, s.job_id, r.id, r.state
from (
  select o.batch_id, o.job_id, coalesce(o.root, o.job_id) as root
  from {schema}.batches_jobs as o
  where o.state <> 0
    and (o.batch_id, o.job_id) > (
      coalesce($1::uuid, '00000000-0000-0000-0000-000000000000'),
      coalesce($2::uuid, '00000000-0000-0000-0000-000000000000'))
  order by o.batch_id, o.job_id
  limit $3::int) as s
left join lateral (
  select d.id, f.state
  from {schema}.replays_of(s.job_id) as d
  cross join lateral (
    select o.state
    from {schema}.finished_jobs as o
    where o.id = d.id
    order by o.finished_at desc
    limit 1) as f
  where d.depth = 1
    and not exists (
      select
      from {schema}.batches_jobs as m
      where m.batch_id = s.batch_id
        and m.job_id = d.id)
    and exists (
      select
      from {schema}.batches_jobs as m
      where m.batch_id = s.batch_id
        and m.job_id = s.root)) as r on true
order by s.batch_id, s.job_id
