-- Files dead letters of events $1, an array of objects, unless they exist. Index: the primary key.
-- Locks: the inserted rows. Safe to repeat.
insert into {schema}.dead_letters (
  id, queue, priority, func, arguments, max_attempts, meta, attempt, crashes, errors, pushed_at,
  died_at, reason, error)
select
  r.id, r.queue, 0, r.func, r.arguments, 1, r.meta, 1, 0, r.errors, r.pushed_at, r.died_at, 'event',
  r.error
from jsonb_to_recordset($1::text::jsonb) as r (
  id uuid, queue text, func text, arguments jsonb, meta jsonb, errors jsonb, pushed_at timestamptz,
  died_at timestamptz, error text)
on conflict (id) do nothing
