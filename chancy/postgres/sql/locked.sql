-- Which of the jobs $1 other transactions have locked. Index: the primary key. Locks: the rows of the
-- others, until the statement ends. Safe to repeat.
with free as materialized (
  select j.id
  from {schema}.jobs as j
  where j.id = any ($1::uuid[])
  for update skip locked)
select j.id
from {schema}.jobs as j
where j.id = any ($1::uuid[])
  and not exists (
    select
    from free as f
    where f.id = j.id)
