-- Claims, under one lease, up to p_limit pending jobs of a Redis queue that stay in Postgres: jobs of
-- workflows and batches, and those that may expire. One is claimed, and more while the arguments and
-- meta before them take less than 4 MiB, as stored. A job that is being moved to Redis, or may already
-- be there, is never among them: it would run in both. Otherwise the same as the function claim.
-- Index: jobs_pending from its start, as far as the function redis_move reads; the primary keys.
-- Locks: rows of jobs, skipping locked ones. Safe to repeat with another lease.
-- The plan is pinned for the same reasons as in the function claim.
create function {schema}.redis_claim(
  p_worker uuid, p_lease uuid, p_queue text, p_limit int
) returns table (
  id uuid, priority smallint, pos bigint, func text, arguments jsonb,
  attempt int, max_attempts int, crashes smallint, meta text, limits text, waited_s float8
)
language plpgsql rows 200
set search_path = pg_catalog, pg_temp
{pinned_plan}
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_first uuid[];
begin
  -- More than p_limit, since others may hold some.
  v_first := array(
    select f.id
    from (
      select j.id, j.meta, j.expires_at
      from {schema}.jobs j
      where j.state = 0 and j.queue = p_queue
        and not exists (select from {schema}.redis_moves m where m.id = j.id)
      order by j.priority desc, j.pos limit greatest(256, 4 * p_limit)) f
    where f.meta ?| '{workflow,batch}' or f.expires_at is not null);
  return query
  with pick as materialized (
    select x.tid, sum(x.bytes) over (rows unbounded preceding) - x.bytes as bytes_before
    from (
      select j.ctid as tid,
        coalesce(pg_column_size(j.arguments), 0) + coalesce(pg_column_size(j.meta), 0) as bytes
      from {schema}.jobs j
      where j.id = any (v_first) and j.state in (0, -1) and j.queue = p_queue
        and not {schema}.expired(j.expires_at, j.attempt, j.crashes)
        and exists (select from {schema}.workers w where w.id = p_worker)
        and not exists (
          select from {schema}.queues q
          where q.name = p_queue and q.paused_at is not null
            and (q.resume_at is null or q.resume_at > clock_timestamp()))
      order by j.priority desc, j.pos limit p_limit for update skip locked) x)
  update {schema}.jobs j
  set state = 1, attempt = least(j.attempt, 2147483646) + 1, lease = p_lease,
    worker_id = p_worker, claimed_at = clock_timestamp(),
    unique_key = case when j.unique_until_claim then null else j.unique_key end
  where j.ctid = any (array(select tid from pick where bytes_before < 4194304))
  returning j.id, j.priority, j.pos, j.func, j.arguments,
    j.attempt, j.max_attempts, j.crashes, j.meta::text, j.limits::text,
    date_part('epoch', j.claimed_at) - date_part('epoch', greatest(j.run_at, j.pushed_at));
end
$$
