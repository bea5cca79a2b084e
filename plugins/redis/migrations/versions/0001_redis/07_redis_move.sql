-- Takes up to p_limit pending jobs of a queue for p_lease_s seconds, under one new lease, to move them
-- to Redis: first the jobs whose previous lease has expired, then the first of the queue. Of both it
-- takes one, and more while the arguments and meta before them take less than p_bytes, as stored. A row
-- without a function stands for a job that is no longer pending. Jobs of workflows and batches stay, as
-- they are settled together with their outcome, and so do jobs that may expire: if there are such jobs
-- among the first ones, or jobs that were set aside, a last row without an id reports it. Takes nothing
-- from a queue whose broker is another one by now: no worker would run the jobs from Redis.
-- Index: jobs_pending from its start, jobs_set_aside, the primary keys. Locks: rows of jobs, and of
-- redis_moves, skipping locked ones. Not to be repeated: taken jobs are returned again after p_lease_s
-- seconds.
-- The plan is pinned for the same reasons as in the function claim.
create function {schema}.redis_move(
  p_queue text, p_limit int, p_bytes bigint, p_lease_s float8
) returns table (
  id uuid, pos bigint, priority smallint, func text, arguments text, run_at float8,
  max_attempts int, meta text, limits text, unique_key text, until_claim boolean,
  replaces boolean, period_s float8, attempt int, crashes smallint, errors text, pushed_at float8,
  lease uuid
)
language plpgsql rows 200
set search_path = pg_catalog, pg_temp
{pinned_plan}
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_until timestamptz := clock_timestamp() + p_lease_s * interval '1 second';
  v_lease uuid := gen_random_uuid();
  v_taken uuid[];
  v_first uuid[];
  v_stay boolean;
begin
  if not exists (select from {schema}.queues q where q.name = p_queue and q.broker = 'redis') then
    return;
  end if;
  v_taken := array(
    select t.id
    from (
      select x.id, sum(x.bytes) over (rows unbounded preceding) - x.bytes as bytes_before
      from (
        select m.id, coalesce((
            select coalesce(pg_column_size(j.arguments), 0) + coalesce(pg_column_size(j.meta), 0)
            from {schema}.jobs j where j.id = m.id), 0) as bytes
        from {schema}.redis_moves m
        where m.queue = p_queue and m.taken_until < clock_timestamp()
        order by m.pos limit p_limit for update of m skip locked) x) t
    where t.bytes_before < p_bytes);
  update {schema}.redis_moves m set taken_until = v_until, lease = v_lease where m.id = any (v_taken);
  select
    array_agg(f.id order by f.priority desc, f.pos)
      filter (where not f.stays and f.bytes_before < p_bytes),
    bool_or(f.stays)
  into v_first, v_stay
  from (
    select x.*, sum(x.bytes) over (rows unbounded preceding) - x.bytes as bytes_before
    from (
      select j.id, j.priority, j.pos, s.stays, case
          when s.stays then 0
          else coalesce(pg_column_size(j.arguments), 0) + coalesce(pg_column_size(j.meta), 0)
        end as bytes
      from {schema}.jobs j
      cross join lateral (
        select coalesce(j.meta ?| '{workflow,batch}', false) or j.expires_at is not null) s (stays)
      where j.state = 0 and j.queue = p_queue
        and not exists (select from {schema}.redis_moves m where m.id = j.id)
      order by j.priority desc, j.pos limit 4 * p_limit) x) f;
  with free as (
    -- In the order of the list, as far as needed.
    select j.id, j.seen
    from unnest(v_first) as f (id)
    cross join lateral (
      select j.id, j.xmin::text as seen from {schema}.jobs j
      where j.id = f.id and j.state in (0, -1) and j.queue = p_queue
      for update skip locked) j
    limit greatest(p_limit - cardinality(v_taken), 0)
  ), marked as (
    insert into {schema}.redis_moves as m (id, queue, taken_until, lease, seen)
    select free.id, p_queue, v_until, v_lease, free.seen from free
    on conflict do nothing
    returning m.id)
  select v_taken || coalesce(array_agg(marked.id), '{}') into v_taken from marked;
  return query
  select m.id, m.pos, j.priority, j.func, j.arguments::text,
    extract(epoch from j.run_at)::float8, j.max_attempts, j.meta::text, j.limits::text,
    encode(j.unique_key, 'hex'), j.unique_until_claim, j.unique_replaces, (
      select extract(epoch from u.until - clock_timestamp())::float8
      from {schema}.unique_periods u
      where u.unique_key = j.unique_key and u.job_id = j.id and u.until > clock_timestamp()),
    j.attempt, j.crashes, j.errors::text, extract(epoch from j.pushed_at)::float8, m.lease
  from {schema}.redis_moves m
  left join {schema}.jobs j on j.id = m.id and j.state in (0, -1)
  where m.id = any (v_taken)
  order by j.priority desc, j.pos;
  if v_stay or exists (
    select from {schema}.jobs j
    where j.state = 3 and j.meta ? 'unknown_function' and j.queue = p_queue) then
    id := null;
    return next;
  end if;
end
$$
