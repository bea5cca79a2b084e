-- Deletes the ids of purged dead letters of jobs that failed over $1 seconds ago, up to $2. Returns
-- their number. Index: dead_letters_purged_died. Locks: the deleted rows, skipping locked ones.
-- Safe to repeat.
with gone as (
  delete from {schema}.dead_letters_purged as p
  using (
    select o.id
    from {schema}.dead_letters_purged as o
    where o.died_at < now() - $1::float8 * interval '1 second'
    order by o.died_at
    limit $2::int
    for update skip locked) as l
  where p.id = l.id
  returning p.id)
select count(*)
from gone
