-- Lets workflows that compensate begin to undo, where a settlement could not; up to $1 of them.
-- Index: workflows_compensating. Locks: the workflows, for themselves, skipping locked ones; then as the function.
-- Safe to repeat.
select count({schema}.workflows_turn(w.id))
from (
  select o.id
  from {schema}.workflows as o
  where o.state = 2
    and not o.undoing
  order by o.id
  limit $1::int
  for no key update skip locked) as w
