-- Scans up to $3 steps after ($1, $2), by workflow and name, of failed workflows: for a failed step,
-- the replay of its dead letter, or a replay of that, that has succeeded, with its result. Null for
-- other steps, and for steps that no longer count because their workflow was undone.
-- Index: workflows_over, the primary keys of workflows_steps and dead_letters, finished_jobs_id.
-- No locks. Safe to repeat.
select s.workflow_id, s.name, s.run, r.id, r.result
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
  with recursive replays (id, depth) as (
    select d.replayed_as, 1
    from {schema}.dead_letters as d
    where s.state = 5
      and s.counts
      and d.id = s.job_id
    union all
    select d.replayed_as, p.depth + 1
    from replays as p
    join {schema}.dead_letters as d on d.id = p.id
    where p.depth < 100)
  select p.id, f.result::text as result
  from replays as p
  join lateral (
    select o.state, o.result
    from {schema}.finished_jobs as o
    where o.id = p.id
    order by o.finished_at desc
    limit 1) as f on f.state = 4
  order by p.depth
  limit 1) as r on true
order by s.workflow_id, s.name
