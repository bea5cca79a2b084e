-- Up to $3 jobs of a batch after $2, by id, that failed (5) or were cancelled (6).
-- Index: batches_jobs_ended. No locks. Safe to repeat.
select m.job_id, m.state
from {schema}.batches_jobs as m
where m.batch_id = $1::uuid
  and m.job_id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
  and m.state <> 0
  and m.state <> 7
order by m.job_id
limit $3::int
