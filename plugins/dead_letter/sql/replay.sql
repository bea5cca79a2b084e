-- Pushes the jobs of dead letters again and marks the dead letters as replayed, all or nothing.
-- $1, $2: ids of dead letters, and the ids of their new jobs. $3: also those that were replayed
-- before. $4, $5: another queue and another number of attempts; null: unchanged. $6, $7: seconds
-- until the first job is due, and between two jobs. Returns the ids of dead letters and jobs. A
-- dead letter whose job cannot be pushed, because its unique key is taken, is unchanged, and so is
-- that of an event, which has no job.
-- $8, one for each: columns of the job that plugins have changed, a JSON object; null: as in the
-- dead letter. They were given $4 and $5, and may have replaced them.
-- The new job starts with no attempts, crashes and errors, without progress, and with no count of
-- snoozes, of rate limits, and of workers that do not register the function. Its checkpoints stay.
-- Index: the primary keys. Locks: the dead letters by id; $9: fails after waiting 100 ms for a lock or
-- a key.
-- Safe to repeat with the same $2: the same result is returned again.
with chosen as materialized (
  select d.id, d.replays, d.unique_key, n.job_id, n.place, j.*
  from {schema}.dead_letters as d
  join unnest($1::uuid[], $2::uuid[], $8::text[]) with ordinality as n (
    id, job_id, changed, place) on n.id = d.id
  cross join lateral (
    select
      coalesce($4::text, d.queue) as queue, d.priority, d.func, d.arguments,
      coalesce($5::int, d.max_attempts) as max_attempts, d.meta, d.limits
    where n.changed is null
    union all
    select c.*
    from jsonb_to_record(n.changed::jsonb) as c (
      queue text, priority smallint, func text, arguments jsonb, max_attempts int,
      meta jsonb, limits jsonb)
    where n.changed is not null) as j
  where (d.replayed_at is null or $3::boolean)
    and d.replayed_as is distinct from n.job_id
    and d.reason <> 'event'
    and (not $9::boolean or set_config('lock_timeout', '100ms', true) is not null)
  order by d.id
  for update of d),
timed as (
  select
    d.*,
    case when d.delay_s > 0 then clock_timestamp() + d.delay_s * interval '1 second' end as due,
    case when jsonb_typeof(d.meta) = 'object' then d.meta else '{}' end
      - '{unknown_function,progress,snoozes,rate_limited}'::text[]
      || jsonb_build_object(
        'dead_letters', jsonb_build_object('replay_of', d.id, 'replays', d.replays + 1)) as marked
  from (
    select c.*, $6::float8 + (row_number() over (order by c.place) - 1) * $7::float8 as delay_s
    from chosen as c) as d),
pushed as (
  insert into {schema}.jobs (
    id, pos, state, queue, priority, func, arguments, run_at, max_attempts, unique_key, limits,
    meta)
  select
    t.job_id, nextval('{schema}.positions'), {schema}.admit(t.due, t.marked),
    t.queue, t.priority, t.func, t.arguments, t.due, t.max_attempts, t.unique_key, t.limits, t.marked
  from timed as t
  order by t.place
  on conflict do nothing
  returning id, queue, state),
marked as (
  update {schema}.dead_letters as d
  set replayed_at = clock_timestamp(), replayed_as = p.id, replays = d.replays + 1
  from chosen as c
  join pushed as p on p.id = c.job_id
  where d.id = c.id
  returning d.id, d.replayed_as)
select m.id, m.replayed_as, w.woken from marked as m
cross join (
  select count({schema}.wake(q.queue, true, q.jobs)) as woken
  from (
    select p.queue, count(*) as jobs from pushed as p where p.state = 0 group by p.queue) as q) as w
union all
select d.id, d.replayed_as, 0
from {schema}.dead_letters as d
join unnest($1::uuid[], $2::uuid[]) as n (id, job_id) on n.id = d.id and n.job_id = d.replayed_as
