-- Makes due scheduled jobs pending, earliest first, each with a new position, and cancels expired jobs.
-- Returns the number of promoted jobs, the seconds until the next job is due (0 if more have expired), the time up to which all due jobs are
-- promoted, and how many workers with a lower id than p_worker are alive, at most 20.
-- p_after: starts at this time, in seconds since the epoch, behind the entries of jobs that are
-- promoted already; null: at the front.
-- Index: jobs_scheduled, from p_after; jobs_expiring. Locks: rows of jobs in these orders, skipping
-- locked ones.
-- Safe to repeat. The time is read once: a volatile call would not be a condition of the index.
create function {schema}.promote(
  p_limit int, p_after float8, p_worker uuid,
  out promoted int, out next_due_s float8, out reached float8, out ahead int
)
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
set enable_sort = off
set lock_timeout = '2s'
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_from timestamptz := coalesce(to_timestamp(p_after), '-infinity');
  v_queues text[];
  v_counts bigint[];
  v_last timestamptz;
begin
  with due as materialized (
    select x.tid, nextval('{schema}.positions') as pos
    from (
      select j.ctid as tid from {schema}.jobs j
      where j.state = 2 and j.run_at >= v_from and j.run_at <= v_now
      order by j.run_at limit p_limit for update skip locked) x
  ), ready as (
    update {schema}.jobs j
    set state = {schema}.admit(null, j.meta), pos = due.pos
    from due
    where j.ctid = due.tid
    returning j.queue, j.run_at)
  select coalesce(sum(r.jobs), 0), array_agg(r.queue), array_agg(r.jobs), max(r.last)
  into promoted, v_queues, v_counts, v_last
  from (
    select ready.queue, count(*) as jobs, max(ready.run_at) as last from ready group by 1) r;
  perform {schema}.wake(q.name, true, q.jobs) from unnest(v_queues, v_counts) as q (name, jobs);
  v_from := case when promoted < p_limit then v_now else coalesce(v_last, v_from) end;
  reached := extract(epoch from v_from);
  -- Not of the difference: that of an infinite time is an error, which would stop all promotion.
  select extract(epoch from j.run_at) - extract(epoch from v_now) into next_due_s
  from {schema}.jobs j where j.state = 2 and j.run_at >= v_from order by j.run_at limit 1;
  if exists (
    select from {schema}.jobs j
    where j.expires_at <= v_now and j.state <> 1 and j.attempt = 0 and j.crashes = 0) then
    begin
      if {schema}.expire(p_limit) > 0 then
        -- A statement of its own, so that it sees what has expired.
        if exists (
          select from {schema}.jobs j
          where j.expires_at <= v_now and j.state <> 1 and j.attempt = 0 and j.crashes = 0) then
          next_due_s := 0;
        end if;
      end if;
    exception when lock_not_available then
      -- An index of the history is being created, for example: due jobs need not wait for it.
    end;
  end if;
  ahead := (select count(*) from (
    select from {schema}.workers w
    where w.id < p_worker and w.beat_at > v_now - interval '15 seconds'
    order by w.id desc limit 20) w);
end
$$
