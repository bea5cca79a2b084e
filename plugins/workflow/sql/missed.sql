-- Scans up to $3 steps after ($1, $2) of workflows that go on, or that ended within the last $4
-- seconds. Returns steps that have not ended, wait for nothing, and have no unfinished job, with
-- the outcome if known, and the state of the workflow. Also returns running jobs of cancelled
-- workflows, and in any case the last step scanned, as the position to continue from.
-- The last column is whether a missing job counts as lost. In a workflow that fails, or is about to
-- be undone, no step starts, so a ready step need not have had a job. An undo step waits for its
-- step until the undoing. A workflow with pieces left to start has no missing steps.
-- It returns no rows after 8 MiB of results, as stored; the last row is the position then too.
-- Index: workflows_going, workflows_lately, the primary keys, finished_jobs_id. No locks. Safe to
-- repeat.
with flows as materialized (
  (select w.id, w.state, w.undoing, exists (
    -- Offset prevents a hash join over all rows, including dead ones.
    select from {schema}.workflows_starts as t where t.workflow_id = w.id offset 0) as starting
  from {schema}.workflows as w
  where w.state in (1, 2, 3)
    and w.id >= coalesce($1::uuid, '00000000-0000-0000-0000-000000000000')
  order by w.id
  limit $3::int)
  union all
  (select w.id, w.state, w.undoing, false
  from (
    -- All workflows of the day, by time: by id, all that ever failed would be scanned.
    select o.id, o.state, o.undoing
    from {schema}.workflows as o
    where o.finished_at > now() - $4::float8 * interval '1 second' and o.state in (5, 6)
    order by o.finished_at
    offset 0) as w
  where w.id >= coalesce($1::uuid, '00000000-0000-0000-0000-000000000000')
  order by w.id
  limit $3::int)),
seen as materialized (
  select s.*, w.state as flow, w.undoing, w.starting
  from (select * from flows order by id limit $3::int) as w
  cross join lateral (
    select
      o.workflow_id, o.name, o.run, o.state, o.needs, o.previous, o.undoes, o.job_id, o.func
    from {schema}.workflows_steps as o
    where o.workflow_id = w.id
      and (o.workflow_id, o.name) > (
        coalesce($1::uuid, '00000000-0000-0000-0000-000000000000'), coalesce($2::text, ''))
    order by o.workflow_id, o.name
    limit $3::int) as s
  order by s.workflow_id, s.name
  limit $3::int),
judged as (
  select
    s.*, j.id is not null as live, j.stop_asked_at,
    -- The cheap conditions first: the function is slow, and most open steps have their jobs.
    s.state = 0 and j.id is null and not s.starting and s.func is not null
      and (s.undoes is not null) = s.undoing
      and (s.undoes is null or s.previous is distinct from s.undoes)
      and {schema}.workflows_ready(s.workflow_id, s.name, s.needs, s.previous) as ready,
    lead(s.name) over (order by s.workflow_id, s.name) is null as last
  from seen as s
  left join {schema}.jobs as j on s.state = 0 and j.id = s.job_id)
select
  r.workflow_id, r.name, r.run, r.job_id, r.flow, r.live, r.ready as missed,
  r.ended, r.result::text, r.errors -> -1 ->> 'message', r.errors -> -1 -> 'types' ->> 0,
  r.ended is null and (r.flow = 1 or r.flow = 2 and r.undoing)
from (
  select g.*, f.state as ended, f.result, f.errors, sum(pg_column_size(f.result)) over (
    order by g.workflow_id, g.name rows between unbounded preceding and 1 preceding) as bytes_before
  from judged as g
  left join lateral (
    select o.state, o.result, o.errors
    from {schema}.finished_jobs as o
    where o.id = g.job_id
    order by o.finished_at desc
    limit 1) as f on g.ready
  where g.last or g.ready or g.flow = 6 and g.live and g.stop_asked_at is null) as r
where coalesce(r.bytes_before, 0) < 8388608
order by r.workflow_id, r.name
