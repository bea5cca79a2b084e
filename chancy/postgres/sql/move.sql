-- Moves waiting jobs ($1) to another queue ($2), in their order, each with a new position, and wakes
-- its workers. Held jobs become pending: the rules and workers of the other queue judge them again.
-- Returns the number of moved jobs. Index: the primary key of jobs. Locks: rows of jobs in the order
-- of their ids, skipping locked ones. Safe to repeat.
with chosen as materialized (
  select j.id, j.pos
  from {schema}.jobs as j
  where j.id = any ($1::uuid[])
    and j.state in (0, 2, 3)
    and j.queue <> $2::text
  order by j.id
  for update skip locked
), ordered as materialized (
  select c.id, nextval('{schema}.positions') as pos
  from (select chosen.id from chosen order by chosen.pos) as c
), moved as (
  update {schema}.jobs as j
  set queue = $2::text, pos = o.pos, state = case j.state when 2 then 2 else {schema}.admit(null, j.meta) end
  from ordered as o
  where j.id = o.id
  returning j.state
)
select count(*), (
  select {schema}.wake($2::text, true, p.jobs)::text
  from (select count(*) as jobs from moved where state = 0) as p
  where p.jobs > 0)
from moved
