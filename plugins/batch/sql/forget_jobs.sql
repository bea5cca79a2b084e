-- Deletes up to $2 jobs of batches that ended over $1 seconds ago. Returns how many.
-- Index: batches_finished, the primary key of batches_jobs. Locks: what it deletes, skipping locked
-- rows. Safe to repeat.
with gone as (
  delete from {schema}.batches_jobs as m
  using (
    select o.batch_id, o.job_id
    from (
      select b.id
      from {schema}.batches as b
      where b.finished_at < now() - $1::float8 * interval '1 second'
      order by b.finished_at
      limit 1000) as b
    join {schema}.batches_jobs as o on o.batch_id = b.id
    limit $2::int
    for update of o skip locked) as l
  where m.batch_id = l.batch_id
    and m.job_id = l.job_id
  returning m.job_id)
select count(*)
from gone
