-- Jobs of a batch behind ($2) that have failed (5) or were cancelled (6), by id, at most $3 of them.
-- Index: batches_jobs_ended. No locks. Safe to repeat.
select m.job_id, m.state
from {schema}.batches_jobs as m
where m.batch_id = $1::uuid
  and m.job_id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
  and m.state <> 0
  and m.state <> 7
order by m.job_id
limit $3::int
