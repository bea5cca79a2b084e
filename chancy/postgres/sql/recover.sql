-- The jobs of a claim whose response was lost, except the jobs $3: one, and more while they take less
-- than $4 bytes. Index: jobs_running. No locks. Safe to repeat.
select
  id, priority, pos, func, arguments::text, attempt, max_attempts, crashes, meta::text,
  limits::text,
  date_part('epoch', claimed_at) - date_part('epoch', greatest(run_at, pushed_at)) as waited_s
from (
  select
    j.*,
    sum(coalesce(pg_column_size(j.arguments), 0) + coalesce(pg_column_size(j.meta), 0))
      over earlier as bytes_before
  from {schema}.jobs as j
  where j.state = 1
    and j.worker_id = $1::uuid
    and j.lease = $2::uuid
    and j.id <> all($3::uuid[])
  window earlier as (
    order by j.priority desc, j.pos rows between unbounded preceding and 1 preceding)) as one
where bytes_before is null or bytes_before < $4::bigint
