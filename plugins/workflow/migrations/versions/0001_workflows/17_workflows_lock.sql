-- Locks workflows whose steps end: shared, or exclusively if their state may change, or signals
-- came early. If a workflow began to fail during the wait, or received such a signal, its lock is
-- released and acquired anew: of two transactions that share it and would both change it, each
-- would wait for the other.
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
  if not p_alone and not exists (
    select from {schema}.workflows w where w.id = any (p_ids) and (w.state <> 1 or w.early > 0)) then
    begin
      if exists (
        select
        from (
          select w.state, w.early from {schema}.workflows w where w.id = any (p_ids) order by w.id
          for share
          offset 0) as l
        having bool_or(l.state <> 1 or l.early > 0)) then
        raise exception using errcode = 'CB001';
      end if;
      return;
    exception when sqlstate 'CB001' then
    end;
  end if;
  perform from {schema}.workflows w where w.id = any (p_ids) order by w.id for no key update;
end
$$
