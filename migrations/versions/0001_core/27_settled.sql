-- Returns which of these attempts have already been settled under these leases.
-- Index: finished_jobs_id in each partition, the primary key of jobs. Reads only.
create function {schema}.settled(p_ids uuid[], p_leases uuid[]) returns setof uuid
language sql stable rows 10
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
  select s.id
  from unnest(p_ids, p_leases) as s (id, lease)
  where exists (
      select from {schema}.finished_jobs f where f.id = s.id and f.lease = s.lease)
    or exists (
      select from {schema}.jobs j where j.id = s.id and j.lease = s.lease and j.state <> 1)
$$
