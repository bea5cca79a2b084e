-- Matching dead letters, newest first, at most $12; for $1 to $9 see the function
-- dead_letters_page. $10, $11: only those before this time of death and id. $13: with all errors, otherwise only the
-- last one. Index: see the function. No locks. Safe to repeat.
select
  d.id, d.queue, d.priority, d.func, d.arguments::text, d.max_attempts, d.limits::text,
  d.meta::text, d.attempt, d.crashes,
  case when $13::boolean then d.errors else jsonb_build_array(d.errors -> -1) end::text,
  d.worker_id, d.host, {schema}.utc(d.pushed_at), {schema}.utc(d.died_at), d.reason, d.error,
  {schema}.utc(d.replayed_at), d.replayed_as, d.replays
from {schema}.dead_letters_page(
  $1::uuid[], $2::text, $3::text, $4::text, $5::timestamptz, $6::timestamptz, $7::boolean, $8::jsonb,
  $9::text, $10::timestamptz, $11::uuid, true, $12::int) as d
