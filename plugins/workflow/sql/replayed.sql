-- Scans up to $3 steps after ($1, $2), by workflow and name, of failed workflows: for a failed step,
-- the replay of its dead letter, or a replay of that, that has succeeded, with its result. Null for
-- other steps, for steps that no longer count because their workflow was undone, and after 8 MiB of
-- results, as stored, which leaves them to the next scan.
-- Index: workflows_over, the primary key of workflows_steps, finished_jobs_id; as the function
-- replays_of.
-- No locks. Safe to repeat.
select
  t.workflow_id, t.name, t.run, case when t.fits then t.job_id end,
  case when t.fits then t.result::text end
from (
  select
    s.workflow_id, s.name, s.run, r.id as job_id, r.result,
    coalesce(sum(pg_column_size(r.result)) over (
      order by s.workflow_id, s.name rows between unbounded preceding and 1 preceding), 0)
      < 8388608 as fits
  from (
    select o.*
    from (
      select w.id, w.undoing
      from {schema}.workflows as w
      where w.state = 5
        and w.id >= coalesce($1::uuid, '00000000-0000-0000-0000-000000000000')
      order by w.id
      limit $3::int) as w
    cross join lateral (
      select t.workflow_id, t.name, t.run, t.state, t.job_id, (t.undoes is not null) = w.undoing as counts
      from {schema}.workflows_steps as t
      where t.workflow_id = w.id
        and (t.workflow_id, t.name) > (
          coalesce($1::uuid, '00000000-0000-0000-0000-000000000000'), coalesce($2::text, ''))
      order by t.workflow_id, t.name
      limit $3::int) as o
    order by w.id, o.name
    limit $3::int) as s
  left join lateral (
    select p.id, f.result
    from {schema}.replays_of(case when s.state = 5 and s.counts then s.job_id end) as p
    join lateral (
      select o.state, o.result
      from {schema}.finished_jobs as o
      where o.id = p.id
      order by o.finished_at desc
      limit 1) as f on f.state = 4
    order by p.depth
    limit 1) as r on true) as t
order by t.workflow_id, t.name
