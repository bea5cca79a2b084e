-- Makes scheduled jobs pending before they are due, each with a new position, and wakes the workers
-- of their queues. Returns their ids. Index: the primary key of jobs. Locks: rows of jobs in the
-- order of their ids, skipping locked ones: the holder of the lock makes them pending. Safe to
-- repeat.
with due as (
  select j.id
  from {schema}.jobs as j
  where j.id = any ($1::uuid[]) and j.state = 2
  order by j.id
  for update skip locked
), ready as (
  update {schema}.jobs as j
  set state = {schema}.admit(null, j.meta), pos = nextval('{schema}.positions'), run_at = clock_timestamp()
  from due
  where j.id = due.id
  returning j.id, j.queue
), woken as (
  select {schema}.wake(q.queue, true, q.jobs) as done
  from (select ready.queue, count(*) as jobs from ready group by ready.queue) as q
)
select ready.id, (select count(woken.done) from woken)
from ready
