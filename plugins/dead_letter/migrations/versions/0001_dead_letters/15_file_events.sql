-- Files dead letters of events, an array of objects, unless they exist: for plugins whose work is not
-- stored as jobs. Index: the primary key. Locks: the inserted rows. Safe to repeat.
create function {schema}.file_events(p_events jsonb) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
  insert into {schema}.dead_letters (
    id, queue, priority, func, arguments, max_attempts, meta, attempt, crashes, errors, pushed_at,
    died_at, reason, error)
  select
    r.id, r.queue, 0, r.func, r.arguments, 1, r.meta, 1, 0, r.errors, r.pushed_at, r.died_at, 'event',
    r.error
  from jsonb_to_recordset(p_events) as r (
    id uuid, queue text, func text, arguments jsonb, meta jsonb, errors jsonb,
    pushed_at timestamptz, died_at timestamptz, error text)
  on conflict (id) do nothing
$$
