-- Makes waiting jobs ($1) due at a time ($2), or a number of seconds ($3) from now: scheduled, or
-- pending with a new position if that time has come, which wakes the workers of their queues. Jobs
-- that are pending stay where they are then. Returns the number of changed jobs. Index: the primary
-- key of jobs. Locks: rows of jobs in the order of their ids, skipping locked ones. Safe to repeat.
with wanted as materialized (
  select w.run_at, case when w.run_at > clock_timestamp() then 2 else 0 end as state
  from (
    select coalesce($2::timestamptz, clock_timestamp() + $3::float8 * interval '1 second')) as w (run_at)
), chosen as materialized (
  select j.id
  from {schema}.jobs as j
  where j.id = any ($1::uuid[])
    and j.state in (0, 2, 3)
    and (j.state <> 0 or (select w.state from wanted as w) = 2)
  order by j.id
  for update skip locked
), changed as (
  update {schema}.jobs as j
  set state = {schema}.admit(w.run_at, j.meta), run_at = w.run_at,
    pos = case w.state when 0 then nextval('{schema}.positions') else j.pos end
  from chosen as c
  cross join wanted as w
  where j.id = c.id
  returning j.queue, j.state
)
select count(*), (
  select count({schema}.wake(q.queue, true, q.jobs))
  from (select queue, count(*) as jobs from changed where state = 0 group by queue) as q)
from changed
