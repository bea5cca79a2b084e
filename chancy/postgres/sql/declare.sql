-- Stores a queue. $14: whether to update an existing one, except for its pause. The row of the
-- migration, which nothing has changed yet, is always updated. Index: the primary key of queues.
-- Locks: its row, unless it stands as wanted: a conflict would lock it even to leave it alone; see the
-- function lock_queue. Safe to repeat.
with stored as (
  insert into {schema}.queues as q (
    name, executor, concurrency, tags, poll_interval_s, keep_finished, paused_at, resume_at,
    limits, options, broker, broker_options, rules)
  select
    $1::text, $2::text, $3::int, $4::text[], $5::float8, $6::boolean,
    case when $7::boolean then clock_timestamp() end, $8::timestamptz,
    $9::text::jsonb, $10::text::jsonb, $11::text, $12::text::jsonb, $13::text::jsonb
  where not exists (
    select
    from {schema}.queues as s
    where s.name = $1::text
      and s.updated_at <> to_timestamp(0)
      and (
        not $14::boolean
        or row(
          s.executor, s.concurrency, s.tags, s.poll_interval_s, s.keep_finished,
          s.limits, s.options, s.broker, s.broker_options, s.rules)
        is not distinct from row(
          $2::text, $3::int, $4::text[], $5::float8, $6::boolean,
          $9::text::jsonb, $10::text::jsonb, $11::text, $12::text::jsonb, $13::text::jsonb)))
    and {schema}.lock_queue($1::text)
  on conflict (name) do update
  set
    executor = excluded.executor,
    concurrency = excluded.concurrency,
    tags = excluded.tags,
    poll_interval_s = excluded.poll_interval_s,
    keep_finished = excluded.keep_finished,
    limits = excluded.limits,
    options = excluded.options,
    broker = excluded.broker,
    broker_options = excluded.broker_options,
    rules = excluded.rules,
    updated_at = clock_timestamp()
  where $14::boolean or q.updated_at = to_timestamp(0)
  returning 1)
select pg_notify({schema}.channel(), 'q:')
from stored
