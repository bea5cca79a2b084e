-- Jobs that match, in the order of a source ($11), with its position. Parameters: $1 states, $2
-- queue, $3 part of the function's path, $4 worker, $5 and $6 paths and values of arguments, $7
-- and $8 of meta, $9 part of the last error's type or message, $10 maximum age in seconds (null
-- matches all), $12 rows to scan, $13 rows to return, $14 the position of the last page as JSON,
-- $15 functions (null matches all).
-- Returns how many rows were scanned and the position of the last one with each match; one row
-- with nulls if nothing matches.
-- Index: that of the source; see the function dashboard_scan. No locks. Safe to repeat.
with scanned as materialized (
  select s.*
  from {schema}.dashboard_scan($11, $2, $4, $12::int, $14::jsonb) with ordinality as s (
    position, id, func, queue, priority, state, attempt, max_attempts, run_at, worker_id, pushed_at,
    claimed_at, finished_at, arguments, errors, meta, place)),
edge as (
  select count(*) as rows, (
    select s.position
    from scanned as s
    order by s.place desc
    limit 1) as position
  from scanned)
select
  e.rows, e.position, m.position, m.id, m.func, m.queue, m.priority, m.state, m.attempt,
  m.max_attempts, {schema}.utc(m.run_at), m.worker_id, {schema}.utc(m.pushed_at),
  {schema}.utc(m.claimed_at), {schema}.utc(m.finished_at), m.arguments, m.error, m.message
from edge as e
left join lateral (
  select
    s.position, s.id, s.func, s.queue, s.priority, s.state, s.attempt, s.max_attempts, s.run_at,
    s.worker_id, s.pushed_at, s.claimed_at, s.finished_at, s.place,
    case when pg_column_size(s.arguments) <= 1000 then s.arguments::text end as arguments,
    left(s.errors -> -1 -> 'types' ->> 0, 200) as error,
    left(s.errors -> -1 ->> 'message', 300) as message
  from scanned as s
  where ($1::smallint[] is null or s.state = any ($1))
    and ($2::text is null or s.queue = $2)
    and ($3::text is null or position($3 in s.func) > 0)
    and ($15::text[] is null or s.func = any ($15))
    and ($4::uuid is null or s.worker_id = $4)
    and (cardinality($5::text[]) = 0 or not exists (
      select from unnest($5::text[], $6::text[]) as u (path, value)
      where s.arguments #>> string_to_array(u.path, '.') is distinct from u.value
        or jsonb_typeof(s.arguments #> string_to_array(u.path, '.')) in ('object', 'array')))
    and (cardinality($7::text[]) = 0 or not exists (
      select from unnest($7::text[], $8::text[]) as u (path, value)
      where s.meta #>> string_to_array(u.path, '.') is distinct from u.value
        or jsonb_typeof(s.meta #> string_to_array(u.path, '.')) in ('object', 'array')))
    and ($9::text is null
      or position(lower($9) in lower(concat_ws(' ', s.errors -> -1 -> 'types' ->> 0,
        s.errors -> -1 ->> 'message'))) > 0)
    and ($10::float8 is null
      or coalesce(s.finished_at, s.pushed_at) >= now() - $10 * interval '1 second')
  order by s.place
  limit $13::int) as m on true
order by m.place
