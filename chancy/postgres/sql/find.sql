-- Finds unfinished and finished jobs by state ($1), queue ($2) and function ($3), below an id ($4),
-- newest first, up to $5. Index: the primary key of jobs and finished_jobs_id, backwards.
-- No locks. Safe to repeat. Reads one table alone if the states are those of its jobs. A condition with
-- few matches reads many rows: callers set a deadline.
(
  select
    j.id, j.func, j.arguments::text, j.queue, j.priority, j.state, j.attempt, j.max_attempts,
    j.crashes, {schema}.utc(j.run_at), j.worker_id, j.meta::text, j.errors::text, null,
    {schema}.utc(j.pushed_at), {schema}.utc(j.claimed_at), null::timestamp,
    {schema}.utc(j.stop_asked_at), j.limits::text, {schema}.utc(j.expires_at)
  from {schema}.jobs as j
  where ($1::smallint[] is null or $1 && '{0,1,2,3}')
    and ($1::smallint[] is null or j.state = any ($1))
    and ($2::text is null or j.queue = $2)
    and ($3::text is null or j.func = $3)
    and ($4::uuid is null or j.id < $4)
  order by j.id desc
  limit $5::int)
union all
(
  select
    f.id, f.func, f.arguments::text, f.queue, f.priority, f.state, f.attempt, f.max_attempts,
    f.crashes, {schema}.utc(f.run_at), f.worker_id, f.meta::text, f.errors::text, f.result::text,
    {schema}.utc(f.pushed_at), {schema}.utc(f.claimed_at), {schema}.utc(f.finished_at),
    {schema}.utc(f.stop_asked_at), f.limits::text, null::timestamp
  from {schema}.finished_jobs as f
  where ($1::smallint[] is null or $1 && '{4,5,6}')
    and ($1::smallint[] is null or f.state = any ($1))
    and ($2::text is null or f.queue = $2)
    and ($3::text is null or f.func = $3)
    and ($4::uuid is null or f.id < $4)
  order by f.id desc
  limit $5::int)
order by 1 desc
limit $5::int
