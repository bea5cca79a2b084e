-- Pushes the job of an entry now, under the id $2, whatever its schedule, pause and overlap say,
-- and wakes the workers of its queue. Its next tick takes the job for one that goes before.
-- Gives when that was; no row if there is no such entry. Index: the primary keys. Locks: its row.
-- Safe to repeat while the job is unfinished.
with entry as (
  update {schema}.cron_entries as e
  set
    jobs = array(
      select j.id from {schema}.jobs as j where j.id = any(e.jobs) limit 100) || $2::uuid,
    revision = revision + 1
  where e.name = $1::text
  returning *),
pushed as (
  insert into {schema}.jobs (
    id, pos, state, queue, priority, func, arguments, max_attempts, meta, limits)
  select
    $2::uuid, nextval('{schema}.positions'), 0, e.queue, e.priority, e.func, e.arguments,
    e.max_attempts,
    coalesce(e.meta, '{}') || jsonb_build_object(
      'cron', jsonb_build_object('entry', e.name, 'manual', true)),
    e.limits
  from entry as e
  on conflict (id) do nothing
  returning id, queue),
noted as (
  insert into {schema}.cron_ticks (entry, tick, manual, job_id)
  select e.name, clock_timestamp(), true, p.id
  from entry as e
  cross join pushed as p
  on conflict do nothing
  returning tick)
select {schema}.utc(n.tick), {schema}.wake(p.queue, true)
from noted as n
cross join pushed as p
