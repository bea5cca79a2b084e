-- Pushes the job of an entry now, with the id $2, regardless of schedule, pause and overlap, and
-- wakes the workers of its queue. The overlap check of the next tick includes this job.
-- The entry stores its last 100 jobs, oldest first, and this one. Earlier jobs stay in that list
-- while they exist in Postgres, or if the queue is in another broker.
-- $3: columns of the job that plugins have changed, a JSON object; null: as in the entry.
-- Returns the time; no row if there is no such entry. Index: the primary keys. Locks: its row.
-- Safe to repeat while the job is unfinished.
with entry as (
  update {schema}.cron_entries as e
  set
    jobs = array(
      select last.id
      from (
        select u.id, u.place
        from unnest(e.jobs) with ordinality as u (id, place)
        where exists (select from {schema}.jobs as j where j.id = u.id)
          or exists (
            select from {schema}.queues as q where q.name = e.queue and q.broker <> 'postgres')
        order by u.place desc
        limit 100) as last
      order by last.place) || $2::uuid,
    revision = revision + 1
  where e.name = $1::text
  returning *),
pushed as (
  insert into {schema}.jobs (
    id, pos, state, queue, priority, func, arguments, max_attempts, meta, limits)
  select
    $2::uuid, nextval('{schema}.positions'), {schema}.admit(null, e.marked), e.queue, e.priority,
    e.func, e.arguments, e.max_attempts, e.marked, e.limits
  from (
    select j.*, coalesce(j.meta, '{}') || jsonb_build_object(
      'cron', jsonb_build_object('entry', o.name, 'manual', true)) as marked
    from entry as o
    cross join lateral jsonb_to_record(
      coalesce($3::text::jsonb, to_jsonb(o))) as j (
        queue text, priority smallint, func text, arguments jsonb, max_attempts int, meta jsonb,
        limits jsonb)) as e
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
