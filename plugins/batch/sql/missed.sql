-- Of up to $3 jobs behind ($1, $2) of batches that run: those that have not ended and are not in jobs,
-- with what became of them, if that is known; and those that run on in a batch that was asked to stop
-- (live). The last one that was looked at is among them in any case, as the place to go on from.
-- Index: batches_going, the primary keys, finished_jobs_id. No locks. Safe to repeat.
with seen as materialized (
  select s.*
  from (
    select b.id, b.stop_asked_at
    from {schema}.batches as b
    where b.state = 1
      and b.id >= coalesce($1::uuid, '00000000-0000-0000-0000-000000000000')
    order by b.id
    limit $3::int) as w
  cross join lateral (
    select o.batch_id, o.job_id, o.state, w.stop_asked_at as stop
    from {schema}.batches_jobs as o
    where o.batch_id = w.id
      and (o.batch_id, o.job_id) > (
        coalesce($1::uuid, '00000000-0000-0000-0000-000000000000'),
        coalesce($2::uuid, '00000000-0000-0000-0000-000000000000'))
    order by o.batch_id, o.job_id
    limit $3::int) as s
  order by s.batch_id, s.job_id
  limit $3::int),
judged as (
  select
    s.*, j.id is not null as live, j.stop_asked_at, s.state = 0 and j.id is null as missed,
    lead(s.job_id) over (order by s.batch_id, s.job_id) is null as last
  from seen as s
  left join {schema}.jobs as j on s.state = 0 and j.id = s.job_id)
select
  g.batch_id, g.job_id, g.missed, f.state,
  g.live and g.stop is not null and g.stop_asked_at is null as goes_on
from judged as g
left join lateral (
  select o.state
  from {schema}.finished_jobs as o
  where o.id = g.job_id
  order by o.finished_at desc
  limit 1) as f on g.missed
where g.last
  or g.missed
  or g.live and g.stop is not null and g.stop_asked_at is null
order by g.batch_id, g.job_id
