-- Scans up to $3 jobs of a batch after $2, by id, that have not ended; returns those that are not
-- finished, and in any case the last one, with false if it is finished.
-- Index: batches_jobs_going, the primary key of jobs. No locks. Safe to repeat.
select s.job_id, s.live
from (
  select
    m.job_id, j.id is not null as live,
    lead(m.job_id) over (order by m.job_id) is null as last
  from (
    select o.job_id
    from {schema}.batches_jobs as o
    where o.batch_id = $1::uuid
      and o.job_id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
      and o.state = 0
    order by o.job_id
    limit $3::int) as m
  left join {schema}.jobs as j on j.id = m.job_id) as s
where s.live
  or s.last
order by s.job_id
