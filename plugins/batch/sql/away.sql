-- Up to $3 jobs of batches after ($1, $2), by batch and job, that are in another broker and have not
-- ended as far as Postgres knows, with whether their batch was asked to stop.
-- Index: batches_jobs_away, the primary key of batches. No locks. Safe to repeat.
select m.batch_id, m.job_id, b.stop_asked_at is not null
from (
  select o.batch_id, o.job_id
  from {schema}.batches_jobs as o
  where o.state = 0
    and o.away
    and (o.batch_id, o.job_id) > (
      coalesce($1::uuid, '00000000-0000-0000-0000-000000000000'),
      coalesce($2::uuid, '00000000-0000-0000-0000-000000000000'))
  order by o.batch_id, o.job_id
  limit $3::int) as m
join {schema}.batches as b on b.id = m.batch_id
order by m.batch_id, m.job_id
