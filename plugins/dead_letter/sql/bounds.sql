-- Up to which death letters are too old ($1 days; null: none is), and up to which they are too
-- many ($2 may stay); null: none. Index: dead_letters_died, the newest $2 rows of it, without the
-- rows themselves once they were vacuumed. No locks. Safe to repeat.
select
  {schema}.utc(now() - $1::float8 * interval '1 day'),
  {schema}.utc((
    select d.died_at
    from {schema}.dead_letters as d
    order by d.died_at desc, d.id desc
    offset $2::bigint
    limit 1))
