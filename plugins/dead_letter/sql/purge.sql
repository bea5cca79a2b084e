-- Deletes the dead letters with the ids $1. $3: only those that were replayed, or only the others;
-- null: both. Stores the ids of those that died within the last $2 seconds as purged;
-- otherwise the sweep would file them again. Returns the number of deleted dead letters.
-- Index: the primary keys. Locks: the dead letters by id; with $4, skipping locked ones. Safe to
-- repeat.
with gone as (
  delete from {schema}.dead_letters as d
  using (
    select o.id
    from {schema}.dead_letters as o
    where o.id = any (case when not $4::boolean then $1::uuid[] else array(
        select f.id
        from {schema}.dead_letters as f
        where f.id = any ($1::uuid[])
        for update skip locked) end)
      and ($3::boolean is null or (o.replayed_at is not null) = $3)
    order by o.id
    for update) as l
  where d.id = l.id
  returning d.id, d.died_at),
noted as (
  insert into {schema}.dead_letters_purged as p (id, died_at)
  select g.id, g.died_at
  from gone as g
  where g.died_at >= now() - $2::float8 * interval '1 second'
  order by g.id
  on conflict (id) do update
  set died_at = greatest(p.died_at, excluded.died_at))
select count(*)
from gone
