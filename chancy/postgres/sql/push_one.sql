-- Stores one new job and wakes the workers of its queue. Like push.sql, but without lists, without
-- a lookup of the id, and with the function wake inlined (0.89 of the calls a second of a bare
-- insert instead of 0.66).
-- Fails with unique_violation if the id exists. Index: the primary key. Locks only the row that it
-- inserts.
insert into {schema}.jobs (
  id, pos, state, queue, priority, func, arguments, run_at, max_attempts, meta, limits)
select
  $1::uuid,
  nextval('{schema}.positions'),
  {schema}.admit(t.due, $9::text::jsonb),
  $2::text, $3::smallint, $4::text, $5::text::jsonb, t.due, $8::int, $9::text::jsonb,
  $10::text::jsonb
from (
  select coalesce(
    $6::timestamptz, clock_timestamp() + $7::float8 * interval '1 second')) as t (due)
returning
  case
    when state = 0
      and (
        not $11::boolean
        or pg_try_advisory_xact_lock(hashtext({schema}.channel()), hashtext(queue)))
    then pg_notify(
      {schema}.channel(), 'w:' || queue || ' ' || pg_current_xact_id()::text || ' 1')
  end
