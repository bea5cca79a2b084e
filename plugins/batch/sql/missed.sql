-- Scans up to $3 jobs of batches after ($1, $2) that have not ended. Returns jobs that are not in the
-- table of jobs, with their outcome if known, jobs that continue in a batch that was asked to stop
-- (goes_on), and in any case the last one scanned, as the position to continue from. By the last
-- column, a missing job counts as cancelled.
-- Index: batches_jobs_going, the primary keys, finished_jobs_id. No locks. Safe to repeat.
with seen as materialized (
  select o.batch_id, o.job_id
  from {schema}.batches_jobs as o
  where o.state = 0
    and (o.batch_id, o.job_id) > (
      coalesce($1::uuid, '00000000-0000-0000-0000-000000000000'),
      coalesce($2::uuid, '00000000-0000-0000-0000-000000000000'))
  order by o.batch_id, o.job_id
  limit $3::int),
judged as (
  select
    s.*, j.id is null as missed, b.stop_asked_at is not null as stopped,
    j.id is not null and b.stop_asked_at is not null and j.stop_asked_at is null as goes_on,
    lead(s.job_id) over (order by s.batch_id, s.job_id) is null as last
  from seen as s
  join {schema}.batches as b on b.id = s.batch_id
  left join {schema}.jobs as j on j.id = s.job_id)
select g.batch_id, g.job_id, g.missed, f.state, g.goes_on, g.stopped
from judged as g
left join lateral (
  select o.state
  from {schema}.finished_jobs as o
  where o.id = g.job_id
  order by o.finished_at desc
  limit 1) as f on g.missed
where g.last
  or g.missed
  or g.goes_on
order by g.batch_id, g.job_id
