-- Sets the priority ($2) of waiting jobs ($1), which keep their positions, and notifies the workers of
-- their queues to claim from the front. Held jobs become pending: the rules of their queue judge them
-- again. Returns the number of changed jobs. Index: the primary key of jobs. Locks: rows of jobs in
-- the order of their ids, skipping locked ones. Safe to repeat.
with chosen as materialized (
  select j.id
  from {schema}.jobs as j
  where j.id = any ($1::uuid[])
    and j.state in (0, 2, 3)
    and j.priority <> $2::smallint
  order by j.id
  for update skip locked
), changed as (
  update {schema}.jobs as j
  set priority = $2::smallint, state = case j.state when 2 then 2 else {schema}.admit(null, j.meta) end
  from chosen as c
  where j.id = c.id
  returning j.queue, j.state
)
select count(*), (
  select count(pg_notify({schema}.channel(), 'r:' || q.queue))
  from (select distinct queue from changed where state = 0) as q)
from changed
