-- The running jobs of a worker with their leases, except the jobs $2 and those of the leases $3, at
-- most $4. Index: jobs_running. No locks. Safe to repeat.
select j.id, j.lease
from {schema}.jobs as j
where j.state = 1
  and j.worker_id = $1::uuid
  and not exists (select from unnest($2::uuid[]) as held (id) where held.id = j.id)
  and j.lease <> all($3::uuid[])
limit $4::int
