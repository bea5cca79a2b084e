-- Ends those of the workflows $1 that fail or compensate, or starts to undo them, where a settlement
-- could not. Steps to start are left in pieces, so that a step that the server refuses
-- does not hold up others; also returns the number of pieces. Index: the primary key.
-- Locks: the workflows, exclusively, skipping locked ones; then as the function. Safe to repeat.
select w.id, {schema}.workflows_turn(w.id, true)
from (
  select o.id
  from {schema}.workflows as o
  where o.id = any ($1::uuid[])
    and (o.state = 3 or o.state = 2 and not o.undoing)
  order by o.id
  for no key update skip locked) as w
