-- Jobs by id, unfinished and finished. Index: the primary key of jobs, finished_jobs_id. No locks.
-- Safe to repeat. An id that was pushed again after its job had finished has several rows: the
-- unfinished one, or else the one that finished last, comes last.
select
  f.id, f.func, f.arguments::text, f.queue, f.priority, f.state, f.attempt, f.max_attempts,
  f.crashes, {schema}.utc(f.run_at), f.worker_id, f.meta::text, f.errors::text, f.result::text,
  {schema}.utc(f.pushed_at), {schema}.utc(f.claimed_at), {schema}.utc(f.finished_at),
  {schema}.utc(f.stop_asked_at), f.limits::text
from {schema}.finished_jobs as f
where f.id = any ($1::uuid[])
union all
select
  j.id, j.func, j.arguments::text, j.queue, j.priority, j.state, j.attempt, j.max_attempts,
  j.crashes, {schema}.utc(j.run_at), j.worker_id, j.meta::text, j.errors::text, null,
  {schema}.utc(j.pushed_at), {schema}.utc(j.claimed_at), null,
  {schema}.utc(j.stop_asked_at), j.limits::text
from {schema}.jobs as j
where j.id = any ($1::uuid[])
order by 17 nulls last
