-- The times of death up to which dead letters are too old (more than $1 days; null: none is), and
-- up to which they are too many (the newest $2 stay); null: none is. Index: dead_letters_died, its
-- newest $2 entries, index-only once the rows are vacuumed. No locks. Safe to repeat.
select
  {schema}.utc(now() - $1::float8 * interval '1 day'),
  {schema}.utc((
    select d.died_at
    from {schema}.dead_letters as d
    order by d.died_at desc, d.id desc
    offset $2::bigint
    limit 1))
