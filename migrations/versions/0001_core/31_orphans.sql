-- Removes workers with missed heartbeats, then returns claims whose worker no longer exists: at most
-- p_limit, and none after 4 MiB of arguments and meta, as stored. Leaves claims out that another
-- transaction locks, as their settlement would have to wait.
-- Index: jobs_running: a loose scan over its workers, then the rows of the missing ones.
-- Locks: rows of workers, then of jobs, skipping locked ones. Safe to repeat: the claims are settled by lease.
create function {schema}.orphans(p_silent_s float8, p_limit int) returns table (
  id uuid, priority smallint, pos bigint, func text, arguments text,
  attempt int, max_attempts int, crashes smallint, meta text,
  queue text, lease uuid, worker_id uuid
)
language plpgsql rows 200
set search_path = pg_catalog, pg_temp
{pinned_plan}
set enable_sort = off
as $$
#variable_conflict use_column
begin
  delete from {schema}.workers w
  where w.id = any (array(
    select s.id from {schema}.workers s
    where s.beat_at < clock_timestamp() - p_silent_s * interval '1 second'
    for update skip locked));
  return query
  with recursive holder (id) as (
    (select j.worker_id from {schema}.jobs j
     where j.state = 1 order by j.worker_id limit 1)
    union all
    select (select j.worker_id from {schema}.jobs j
            where j.state = 1 and j.worker_id > holder.id order by j.worker_id limit 1)
    from holder where holder.id is not null)
  select y.id, y.priority, y.pos, y.func, y.arguments::text, y.attempt, y.max_attempts,
    y.crashes, y.meta::text, y.queue, y.lease, y.worker_id
  from (
    select o.*, sum(o.bytes) over (rows unbounded preceding) - o.bytes as bytes_before
    from (
      select x.*
      from holder
      cross join lateral (
        select j.*, coalesce(pg_column_size(j.arguments), 0)
          + coalesce(pg_column_size(j.meta), 0) as bytes
        from {schema}.jobs j
        where j.state = 1 and j.worker_id = holder.id limit p_limit
        for update of j skip locked) x
      where holder.id is not null
        and not exists (select from {schema}.workers w where w.id = holder.id)
      limit p_limit) o) y
  where y.bytes_before < 4194304;
end
$$
