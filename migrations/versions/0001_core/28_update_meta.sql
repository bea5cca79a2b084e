-- Merges keys into the meta of running jobs; returns the ids whose lease is valid.
-- Index: the primary key of jobs, once for each id. Locks: rows of jobs in the order given.
-- The conditions are written as in requeue, for the same reason. Safe to repeat.
create function {schema}.update_meta(p_ids uuid[], p_leases uuid[], p_metas text[]) returns setof uuid
language sql volatile rows 200
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
  update {schema}.jobs j
  set meta = {schema}.with_meta(j.meta, n.change)
  from unnest(p_ids, p_leases, p_metas) as n (id, lease, change)
  where j.id = any (array[n.id]) and j.lease = n.lease and j.state in (1, -1)
  returning j.id
$$
