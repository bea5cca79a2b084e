-- Stores one job that is new, and wakes the workers of its queue: what push.sql does, without
-- lists, without looking for the id first, and with the function wake written out (0.89 of the
-- calls a second of a bare insert instead of 0.66).
-- Refused with unique_violation if the id is there. Index: the primary key. No locks but on what
-- it inserts.
insert into {schema}.jobs (
  id, pos, state, queue, priority, func, arguments, run_at, max_attempts, meta, limits)
select
  $1::uuid,
  nextval('{schema}.positions'),
  case when t.due > clock_timestamp() then 2 else 0 end,
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
    then pg_notify({schema}.channel(), 'w:' || queue)
  end
