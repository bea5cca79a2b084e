-- Up to $1 workflows after $2, by id, that fail or compensate, and may end, or start to be undone.
-- Index: workflows_compensating. No locks. Safe to repeat.
select w.id
from {schema}.workflows as w
where (w.state = 3 or w.state = 2 and not w.undoing)
  and w.id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
order by w.id
limit $1::int
