-- Stores why the entry of this name and revision cannot be fired, and makes it due again in $4
-- seconds. Returns its name if the problem has changed. Index: the primary key. Locks: its row,
-- unless another transaction has locked it: the entry stays due. Safe to repeat.
with before as materialized (
  select e.name, e.problem
  from {schema}.cron_entries as e
  where e.name = $1::text
    and e.revision = $2::bigint
  for update skip locked),
marked as (
  update {schema}.cron_entries as e
  set problem = $3::text, next_at = clock_timestamp() + $4::float8 * interval '1 second'
  from before as b
  where b.name = e.name)
select b.name
from before as b
where b.problem is distinct from $3::text
