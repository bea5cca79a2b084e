-- Removes up to $2 jobs of a batch from the outbox of Redis, except those that a relay is sending.
-- Index: none, the whole of the outbox; batches_jobs_away. Locks: what it deletes, skipping locked
-- rows. Safe to repeat.
delete from {schema}.redis_outbox as d
where d.pos = any (array(
  select o.pos
  from {schema}.redis_outbox as o
  join {schema}.batches_jobs as m on m.batch_id = $1::uuid and m.job_id = o.id
  where m.state = 0
    and m.away
    and coalesce(o.taken_until < clock_timestamp(), true)
  limit $2::int
  for update of o skip locked))
returning d.id
