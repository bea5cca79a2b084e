-- Stores jobs in order and wakes the workers of their queues. Index: the primary key.
-- Locks only the rows that it inserts. Safe to repeat while the jobs are unfinished.
-- $2, $3, $4 and $8 have one value for each job, or one for all of them: 4.1 µs a job instead of
-- 6.6. $6, $7, $9 to $12 may be null.
-- $13: whether a concurrent push may send the notification instead; see the function wake.
with pushed as (
  insert into {schema}.jobs (
    id, pos, state, queue, priority, func, arguments, run_at, max_attempts, meta,
    limits, expires_at)
  select
    t.id,
    nextval('{schema}.positions'),
    {schema}.admit(t.due, t.meta::jsonb),
    coalesce(t.queue, ($2::text[])[1]), coalesce(t.priority, ($3::smallint[])[1]),
    coalesce(t.func, ($4::text[])[1]), t.arguments::jsonb, t.due,
    coalesce(t.max_attempts, ($8::int[])[1]), t.meta::jsonb, t.limits::jsonb,
    coalesce(t.expires_at, clock_timestamp() + t.expires_s * interval '1 second')
  from (
    select
      u.*,
      coalesce(u.run_at, clock_timestamp() + u.delay_s * interval '1 second') as due
    from unnest(
      $1::uuid[], $2::text[], $3::smallint[], $4::text[], $5::text[], $6::timestamptz[],
      $7::float8[], $8::int[], $9::text[], $10::text[],
      $11::timestamptz[], $12::float8[]
    ) as u (id, queue, priority, func, arguments, run_at, delay_s, max_attempts, meta,
      limits, expires_at, expires_s)) as t
  where ($11::timestamptz[] is null and $12::float8[] is null) or (
    select {schema}.check_counted(array(
      select coalesce(e.queue, ($2::text[])[1])
      from unnest($2::text[], $11::timestamptz[], $12::float8[]) as e (queue, at, s)
      where e.at is not null or e.s is not null), 'a job that expires'))
  on conflict (id) do nothing
  returning queue, state)
select {schema}.wake(q.queue, $13::boolean, q.jobs)
from (
  select p.queue, count(*) as jobs
  from pushed as p
  where p.state = 0
  group by p.queue) as q
