-- Inserts jobs into the outbox in order and wakes a relay, with one notification per transaction.
-- $1 ids, $2 queues, $3 priorities, $4 functions, $5 arguments, $6 run at, $7 seconds of delay,
-- $8 most attempts, $9 meta, $10 limits, $11 unique rules. Index: none. Locks: the inserted rows.
-- Repeated in one transaction it inserts the jobs twice; they are pushed once.
with pushed as (
  insert into {schema}.redis_outbox (
    id, queue, priority, func, arguments, run_at, max_attempts, meta, limits, rule)
  select
    u.id, u.queue, u.priority, u.func, u.arguments::jsonb,
    coalesce(u.run_at, clock_timestamp() + u.delay_s * interval '1 second'),
    u.max_attempts, u.meta::jsonb, u.limits::jsonb, u.rule::jsonb
  from unnest(
    $1::uuid[], $2::text[], $3::smallint[], $4::text[], $5::text[], $6::timestamptz[],
    $7::float8[], $8::int[], $9::text[], $10::text[], $11::text[]
  ) with ordinality as u (
    id, queue, priority, func, arguments, run_at, delay_s, max_attempts, meta, limits, rule, n)
  order by u.n
  returning 1)
select pg_notify({schema}.channel() || '_r', 'w:')
where exists (select from pushed)
