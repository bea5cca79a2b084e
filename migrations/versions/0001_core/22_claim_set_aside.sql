-- Claims up to p_limit jobs of a queue that were set aside, of the given functions. Otherwise the
-- same as the function claim.
-- Index: jobs_set_aside, once for each function. Locks: rows of jobs in that order, skipping locked
-- ones. Safe to repeat with another lease.
create function {schema}.claim_set_aside(
  p_worker uuid, p_lease uuid, p_queue text, p_limit int, p_funcs text[], p_bytes bigint
) returns table (
  id uuid, priority smallint, pos bigint, func text, arguments jsonb,
  attempt int, max_attempts int, crashes smallint, meta text, limits text, waited_s float8
)
language plpgsql rows 200
set search_path = pg_catalog, pg_temp
{pinned_plan}
set enable_sort = off
set lock_timeout = '2s'
as $$
#variable_conflict use_column
begin
  return query
  with pick as materialized (
    select x.tid, sum(x.bytes) over (rows unbounded preceding) - x.bytes as bytes_before
    from (
      select l.tid, l.bytes
      from unnest(p_funcs) as wanted (func)
      cross join lateral (
        select j.ctid as tid,
          coalesce(pg_column_size(j.arguments), 0) + pg_column_size(j.meta) as bytes
        from {schema}.jobs j
        where j.state = 3 and j.meta ? 'unknown_function' and j.queue = p_queue
          and j.func = wanted.func
          and not {schema}.expired(j.expires_at, j.attempt, j.crashes)
        order by j.priority desc, j.pos limit p_limit for update skip locked) l
      where exists (select from {schema}.workers w where w.id = p_worker)
        and not exists (
          select from {schema}.queues q
          where q.name = p_queue and q.paused_at is not null
            and (q.resume_at is null or q.resume_at > clock_timestamp()))
      limit p_limit) x)
  update {schema}.jobs j
  set state = 1, attempt = least(j.attempt, 2147483646) + 1, lease = p_lease,
    worker_id = p_worker, claimed_at = clock_timestamp(),
    unique_key = case when j.unique_until_claim then null else j.unique_key end
  where j.ctid = any (array(select tid from pick where bytes_before < p_bytes))
  returning j.id, j.priority, j.pos, j.func, j.arguments,
    j.attempt, j.max_attempts, j.crashes, j.meta::text, j.limits::text,
    date_part('epoch', j.claimed_at) - date_part('epoch', greatest(j.run_at, j.pushed_at));
end
$$
