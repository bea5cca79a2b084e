-- Files dead letters of the jobs $1 that failed within the last $2 seconds and have rows in the
-- history. An existing dead letter is unchanged, unless the job was pushed again and has failed
-- since. Returns the ids and queues of those that were filed.
-- Index: finished_jobs_id of the days in question, once for each id; the primary keys. The fence
-- `offset 0` prevents the planner from scanning a whole day without statistics, and the condition
-- on the state is written so that dead_letters_failed is not used (370 pages for each id).
-- Locks: the existing dead letters, leaving out jobs whose dead letter another transaction has
-- locked, which the sweep files later; the inserted rows, by id. Safe to repeat.
insert into {schema}.dead_letters as d (
  id, queue, priority, func, arguments, max_attempts, unique_key, limits, meta, attempt, crashes,
  errors, worker_id, host, pushed_at, died_at, reason, error)
select distinct on (f.id)
  f.id, f.queue, f.priority, f.func, f.arguments, f.max_attempts, f.unique_key, f.limits, f.meta,
  f.attempt, f.crashes, f.errors, f.worker_id,
  coalesce(f.errors -> -1 ->> 'host', w.host), f.pushed_at, f.finished_at,
  {schema}.dead_letters_reason(f.errors), left(f.errors -> -1 -> 'types' ->> 0, 255)
from unnest($1::uuid[]) as u (id)
cross join lateral (
  select *
  from {schema}.finished_jobs as o
  where o.id = u.id
    and o.state in (5, -1)
    and o.finished_at >= now() - $2::float8 * interval '1 second'
    and o.finished_at < now() + interval '1 hour'
  offset 0) as f
left join lateral (
  select d.id
  from {schema}.dead_letters as d
  where d.id = u.id
  offset 0) as existing on true
left join lateral (
  select d.id
  from {schema}.dead_letters as d
  where d.id = u.id
  for update skip locked) as unlocked on true
left join {schema}.workers as w on w.id = f.worker_id
where (existing.id is null or unlocked.id is not null)
  and not exists (
    select
    from {schema}.dead_letters_purged as p
    where p.id = f.id
      and coalesce(p.died_at >= f.finished_at, false))
order by f.id, f.finished_at desc
on conflict (id) do update
set
  queue = excluded.queue, priority = excluded.priority, func = excluded.func,
  arguments = excluded.arguments, max_attempts = excluded.max_attempts,
  unique_key = excluded.unique_key, limits = excluded.limits, meta = excluded.meta,
  attempt = excluded.attempt, crashes = excluded.crashes, errors = excluded.errors,
  worker_id = excluded.worker_id, host = excluded.host, pushed_at = excluded.pushed_at,
  died_at = excluded.died_at, reason = excluded.reason, error = excluded.error,
  replayed_at = null, replayed_as = null
where d.died_at < excluded.died_at
returning d.id, d.queue
