-- Returns every declared queue, and every queue with pending, scheduled or held jobs: how
-- many it has of each, up to p_most, and the seconds for which its oldest pending job has been
-- due, taking the first of each priority for its oldest.
-- Index: jobs_pending, jobs_dashboard_scheduled and jobs_held, by loose scans of their
-- queues, and of the priorities of each. The plan is pinned: before a vacuum, the planner
-- prefers to read the whole table for each queue. plpgsql keeps the plan: to plan it takes 4 ms.
-- No locks. Safe to repeat.
create function {schema}.dashboard_counts(p_most int)
returns table (queue text, pending bigint, oldest_s float8, scheduled bigint, held bigint)
language plpgsql stable
set search_path = pg_catalog, pg_temp
{pinned_plan}
set enable_sort = off
as $$
#variable_conflict use_column
begin
  return query
  with recursive waiting (queue) as (
    (select j.queue from {schema}.jobs j where j.state = 0 order by j.queue limit 1)
    union all
    select (
      select j.queue from {schema}.jobs j
      where j.state = 0 and j.queue > w.queue order by j.queue limit 1)
    from waiting w where w.queue is not null),
  later (queue) as (
    (select j.queue from {schema}.jobs j where j.state = 2 order by j.queue limit 1)
    union all
    select (
      select j.queue from {schema}.jobs j
      where j.state = 2 and j.queue > l.queue order by j.queue limit 1)
    from later l where l.queue is not null),
  kept (queue) as (
    (select j.queue from {schema}.jobs j where j.state + 0 = 3 order by j.queue limit 1)
    union all
    select (
      select j.queue from {schema}.jobs j
      where j.state + 0 = 3 and j.queue > k.queue order by j.queue limit 1)
    from kept k where k.queue is not null)
  select n.queue,
    (select count(*) from (
      select from {schema}.jobs j where j.state = 0 and j.queue = n.queue limit p_most) c),
    (with recursive fronts (priority, due_at) as (
       (select j.priority, greatest(j.pushed_at, j.run_at) from {schema}.jobs j
        where j.state = 0 and j.queue = n.queue order by j.priority desc, j.pos limit 1)
       union all
       select o.priority, o.due_at
       from fronts f cross join lateral (
         select j.priority, greatest(j.pushed_at, j.run_at) as due_at from {schema}.jobs j
         where j.state = 0 and j.queue = n.queue and j.priority < f.priority
         order by j.priority desc, j.pos limit 1) o)
     select (extract(epoch from clock_timestamp()) - extract(epoch from min(f.due_at)))::float8
     from fronts f),
    (select count(*) from (
      select from {schema}.jobs j where j.state = 2 and j.queue = n.queue limit p_most) c),
    (select count(*) from (
      select from {schema}.jobs j
      where j.state + 0 = 3 and j.queue = n.queue limit p_most) c)
  from (
    select q.name as queue from {schema}.queues q
    union select w.queue from waiting w
    union select l.queue from later l
    union select k.queue from kept k) n
  where n.queue is not null;
end
$$
