-- Merges keys into the meta of running jobs; returns the ids whose lease is valid, and whether the
-- keys are written. They are not where another transaction has locked the row: no lock is waited
-- for.
-- Index: the primary key of jobs, once for each id. Locks: rows of jobs, skipping locked ones.
-- The conditions are written as in requeue, for the same reason. Safe to repeat.
create function {schema}.update_meta(
  p_ids uuid[], p_leases uuid[], p_metas text[], out o_id uuid, out o_written boolean
) returns setof record
language sql volatile rows 200
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
  with free as materialized (
    select j.id, n.change
    from unnest(p_ids, p_leases, p_metas) as n (id, lease, change)
    join {schema}.jobs j on j.id = any (array[n.id]) and j.lease = n.lease and j.state in (1, -1)
    for update of j skip locked
  ), written as (
    update {schema}.jobs j
    set meta = {schema}.with_meta(j.meta, f.change)
    from free f
    where j.id = any (array[f.id])
    returning j.id)
  select w.id, true from written w
  union all
  select n.id, false
  from unnest(p_ids, p_leases) as n (id, lease)
  where n.id not in (select w.id from written w)
    and exists (
      select from {schema}.jobs j
      where j.id = any (array[n.id]) and j.lease = n.lease and j.state in (1, -1))
$$
