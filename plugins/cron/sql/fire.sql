-- Fires ticks of several entries: records each tick, pushes its job, advances the entry, and wakes
-- the workers, all or nothing. Of concurrent calls the first one fires an entry: the others find
-- its row locked or another revision, and skip it.
-- $1 to $4, one for each entry: name, revision as read, the newest tick that has passed (null:
-- none), when the next one is due; $11: whether another broker has an unfinished job of the entry.
-- $5 to $10, one for each tick: entry name, tick, id of its job, when the job is due (null: at
-- once), ticks dropped before it, whether the tick is too late to be fired. $12, $13, one for each
-- tick: columns of its job that plugins have changed, a JSON object (null: as in the entry), and
-- whether a plugin refuses it.
-- Index: the primary keys. Locks: rows of cron_entries by name, skipping locked ones.
-- Safe to repeat: the revision has changed then.
with entries as materialized (
  select e.*, g.passed_at, g.following_at, e.overlap <> 'skip' or not g.busy and not exists (
      select from {schema}.jobs as j where j.id = any(e.jobs)) as idle
  from {schema}.cron_entries as e
  join unnest($1::text[], $2::bigint[], $3::timestamptz[], $4::timestamptz[], $11::boolean[])
    as g (name, revision, passed_at, following_at, busy) on g.name = e.name
  where e.revision = g.revision
    and e.paused_at is null
  order by e.name
  for update of e skip locked),
ticks as (
  insert into {schema}.cron_ticks (entry, tick, job_id, run_at, missed, skipped)
  select v.entry, v.tick, case when v.why is null then v.job_id end, v.run_at, v.missed, v.why
  from (
    select t.*, case
      when t.late then 'late'
      when t.refused then 'refused'
      when not e.idle then 'overlap'
      when e.overlap = 'skip' and row_number() over (partition by e.name order by t.tick) > 1
        then 'overlap'
      end as why
    from unnest($5::text[], $6::timestamptz[], $7::uuid[], $8::timestamptz[], $9::int[],
      $10::boolean[], $13::boolean[]) as t (entry, tick, job_id, run_at, missed, late, refused)
    join entries as e on e.name = t.entry) as v
  on conflict do nothing
  returning entry, tick, job_id, run_at, skipped),
pushed as (
  insert into {schema}.jobs (
    id, pos, state, queue, priority, func, arguments, run_at, max_attempts, meta, limits)
  select o.job_id, nextval('{schema}.positions'),
    {schema}.admit(o.run_at, o.marked),
    o.queue, o.priority, o.func, o.arguments, o.run_at, o.max_attempts, o.marked,
    o.limits
  from (
    select e.name, t.tick, t.job_id, t.run_at, j.queue, j.priority, j.func, j.arguments,
      j.max_attempts, j.limits, coalesce(j.meta, '{}') || jsonb_build_object(
      'cron', jsonb_build_object('entry', e.name, 'tick',
        to_char(t.tick at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"+00:00"'))) as marked
    from ticks as t
    join entries as e on e.name = t.entry
    join unnest($7::uuid[], $12::text[]) as c (job_id, changed) on c.job_id = t.job_id
    cross join lateral jsonb_to_record(coalesce(c.changed::jsonb, to_jsonb(e))) as j (queue text,
      priority smallint, func text, arguments jsonb, max_attempts int, meta jsonb, limits jsonb)
    order by t.tick, e.name) as o
  returning queue, state),
moved as (
  update {schema}.cron_entries as e
  set last_tick = greatest(e.last_tick, n.passed_at), next_at = n.following_at, problem = null,
    revision = e.revision + 1,
    jobs = coalesce((
      select array_agg(t.job_id) from ticks as t where t.entry = e.name
        and t.job_id is not null), e.jobs)
  from entries as n
  where n.name = e.name
  returning e.name)
select m.name, t.tick, t.job_id, t.skipped, w.woken
from (select count({schema}.wake(q.queue, true, q.jobs)) as woken from (
  select p.queue, count(*) as jobs from pushed as p where p.state = 0 group by p.queue) as q) as w
cross join moved as m
left join ticks as t on t.entry = m.name
