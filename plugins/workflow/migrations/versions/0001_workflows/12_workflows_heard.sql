-- Counts signals that arrived early and have ended their steps: the workflow of each.
-- Index: the primary key. Locks: the caller holds the workflows exclusively. Not to be repeated.
create function {schema}.workflows_heard(p_ids uuid[]) returns void
language sql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
  update {schema}.workflows w
  set early = w.early - h.count
  from (select u.id, count(*) as count from unnest(p_ids) as u (id) group by u.id) as h
  where w.id = h.id
$$
