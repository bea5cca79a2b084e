-- One step of a walk through the history of a queue, from p_until back to p_from: reads p_limit
-- jobs, and removes all matching jobs but the first p_keep, if they finished before p_before. With
-- p_remove false it only counts them. Returns the number of jobs it read, how many of them match,
-- how many are (to be) removed, the time it reached, and the latest finish time of the removed
-- jobs.
-- Jobs that finished at exactly the time at which the step stops belong to the step, however many
-- they are: the next step begins before that time.
-- Index: finished_jobs_queue of the partitions of that time, backwards; finished_jobs_id, once for
-- each job. Locks: the rows that it removes, the latest first; stops after waiting 100 ms for a
-- lock.
-- Safe to repeat. The plan is pinned: today's partition has no statistics, and with a bitmap scan
-- or a sort each step would read all of it. The condition on id is written so that only its index
-- serves it, as in {schema}.finish; the condition on the time leaves one partition to read.
create function {schema}.pruner_step(
  p_queue text, p_from timestamptz, p_until timestamptz, p_before timestamptz, p_state smallint,
  p_func text, p_keep bigint, p_limit int, p_remove boolean,
  out seen int, out matched int, out removed int, out reached timestamptz, out latest timestamptz
)
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
set enable_sort = off
set lock_timeout = '100ms'
as $$
begin
  with looked_at as materialized (
    select f.id, f.finished_at,
      (p_state is null or f.state = p_state) and (p_func is null or f.func like p_func) as meant
    from {schema}.finished_jobs f
    where f.queue = p_queue and f.finished_at >= p_from and f.finished_at < p_until
    order by f.finished_at desc
    fetch first (p_limit) rows with ties
  ), surplus as materialized (
    select n.id, n.finished_at
    from (
      select l.*, row_number() over (order by l.finished_at desc, l.id) as nth
      from looked_at l where l.meant) n
    where n.nth > p_keep and n.finished_at < p_before
  ), gone as (
    delete from {schema}.finished_jobs f
    using surplus s
    where p_remove and f.id = any (array[s.id]) and f.finished_at = s.finished_at
    returning f.id)
  select count(*), count(*) filter (where l.meant), min(l.finished_at),
    case when p_remove then (select count(*) from gone) else (select count(*) from surplus) end,
    (select max(s.finished_at) from surplus s)
  into seen, matched, reached, removed, latest
  from looked_at l;
end
$$
