-- Locks workflows whose steps end: together with others, or alone if their state may change.
-- Index: the primary key. Locks: the workflows by id, until the transaction ends.
create function {schema}.workflows_lock(p_ids uuid[], p_alone boolean) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
  if p_alone or exists (
    select from {schema}.workflows w where w.id = any (p_ids) and w.state <> 1) then
    perform from {schema}.workflows w where w.id = any (p_ids) order by w.id for no key update;
  else
    perform from {schema}.workflows w where w.id = any (p_ids) order by w.id for share;
  end if;
end
$$
