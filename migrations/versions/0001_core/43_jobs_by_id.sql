-- Returns jobs by id, unfinished and finished ones. An id that was pushed again after its job had
-- finished has several rows: the unfinished one, or else the one that finished last, comes last.
-- Ids of version 7 hold the time of their push, which tells the partitions that can hold the jobs:
-- with a history of 249 partitions that takes 0.4 ms instead of 3.9. The clock of a client may be
-- ahead, so the other partitions are read for ids that were not found.
-- Index: the primary key of jobs, finished_jobs_id in each partition that is read. No locks. Safe to
-- repeat. Stable, so that all of it sees one snapshot: no job is missed on its way into the history.
-- The plan is pinned: planning for 9 partitions took 1.1 of 1.6 ms, for 249 of them 29 of 33.
create function {schema}.jobs_by_id(p_ids uuid[]) returns table (
  id uuid, func text, arguments text, queue text, priority smallint, state smallint, attempt int,
  max_attempts int, crashes smallint, run_at timestamp, worker_id uuid, meta text, errors text,
  result text, pushed_at timestamp, claimed_at timestamp, finished_at timestamp,
  stop_asked_at timestamp, limits text, expires_at timestamp
)
language plpgsql stable rows 10
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_since timestamptz := (
    select coalesce(min(case
      when substr(u.id::text, 15, 1) = '7' then to_timestamp(
        ('x' || substr(replace(u.id::text, '-', ''), 1, 12))::bit(48)::bigint / 1000.0)
      else '-infinity' end) - interval '1 hour', '-infinity')
    from unnest(p_ids) as u (id));
  v_until timestamptz := 'infinity';
  v_missing uuid[] := p_ids;
begin
  loop
    return query
    select f.id, f.func, f.arguments::text, f.queue, f.priority, f.state, f.attempt,
      f.max_attempts, f.crashes, {schema}.utc(f.run_at), f.worker_id, f.meta::text,
      f.errors::text, f.result::text, {schema}.utc(f.pushed_at), {schema}.utc(f.claimed_at),
      {schema}.utc(f.finished_at), {schema}.utc(f.stop_asked_at), f.limits::text,
      null::timestamp
    from {schema}.finished_jobs f
    where f.id = any (v_missing) and f.finished_at >= v_since and f.finished_at < v_until
    order by f.finished_at;
    exit when v_since = '-infinity';
    -- Ids that have no row in the partitions read so far, nor one of an unfinished job.
    v_missing := array(
      select u.id from unnest(p_ids) as u (id)
      where not exists (select from {schema}.jobs j where j.id = u.id)
        and not exists (
          select from {schema}.finished_jobs f where f.id = u.id and f.finished_at >= v_since));
    exit when cardinality(v_missing) = 0;
    v_until := v_since;
    v_since := '-infinity';
  end loop;
  return query
  select j.id, j.func, j.arguments::text, j.queue, j.priority, j.state, j.attempt,
    j.max_attempts, j.crashes, {schema}.utc(j.run_at), j.worker_id, j.meta::text,
    j.errors::text, null::text, {schema}.utc(j.pushed_at), {schema}.utc(j.claimed_at),
    null::timestamp, {schema}.utc(j.stop_asked_at), j.limits::text,
    {schema}.utc(j.expires_at)
  from {schema}.jobs j
  where j.id = any (p_ids);
end
$$
