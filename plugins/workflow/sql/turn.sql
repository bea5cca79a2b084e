-- Lets workflows behind $2 that fail or compensate end, or begin to undo, where a settlement could not; up
-- to $1 of them. What begins is left in pieces, so that none that the server refuses to start holds up the
-- others: gives how many, too. Index: workflows_compensating. Locks: the workflows, for themselves, skipping locked
-- ones; then as the function. Safe to repeat.
select w.id, {schema}.workflows_turn(w.id, true)
from (
  select o.id
  from {schema}.workflows as o
  where (o.state = 3 or o.state = 2 and not o.undoing)
    and o.id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
  order by o.id
  limit $1::int
  for no key update skip locked) as w
