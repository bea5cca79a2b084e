-- Ends up to $1 workflows after $2 that fail or compensate, or starts to undo them, where a
-- settlement could not. Steps to start are left in pieces, so that a step that the server refuses
-- does not hold up others; also returns the number of pieces. Index: workflows_compensating.
-- Locks: the workflows, exclusively, skipping locked ones; then as the function. Safe to repeat.
select w.id, {schema}.workflows_turn(w.id, true)
from (
  select o.id
  from {schema}.workflows as o
  where (o.state = 3 or o.state = 2 and not o.undoing)
    and o.id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
  order by o.id
  limit $1::int
  for no key update skip locked) as w
