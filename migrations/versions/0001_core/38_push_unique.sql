-- Stores jobs in the given order, some of them with unique keys. Returns the jobs that were not
-- stored because another job holds their key: the id, the id of the other job, and the function
-- where the conflict was to be an error. In that case the call stores nothing, and the surrounding
-- transaction continues.
-- Index, locks: as for {schema}.push_keyed. Safe to repeat while the jobs are unfinished.
create function {schema}.push_unique(
  p_ids uuid[], p_queues text[], p_priorities smallint[], p_funcs text[], p_arguments text[],
  p_run_ats timestamptz[], p_delays float8[], p_max_attempts int[], p_metas text[],
  p_limits text[], p_keys bytea[], p_on_conflict text[], p_until_claim boolean[],
  p_periods float8[], p_caps float8[], p_expires_ats timestamptz[], p_expires_s float8[],
  p_guarded boolean
) returns table (id uuid, stored uuid, refused text)
language plpgsql rows 10
set search_path = pg_catalog, pg_temp
as $$
declare
  v_detail text;
begin
  if 'raise' <> all (p_on_conflict) then
    return query
    select a.id, a.stored, null::text
    from {schema}.push_unique_all(
      p_ids, p_queues, p_priorities, p_funcs, p_arguments, p_run_ats, p_delays, p_max_attempts,
      p_metas, p_limits, p_keys, p_on_conflict, p_until_claim, p_periods, p_caps, p_expires_ats,
      p_expires_s, p_guarded) a;
    return;
  end if;
  begin
    return query
    select a.id, a.stored, null::text
    from {schema}.push_unique_all(
      p_ids, p_queues, p_priorities, p_funcs, p_arguments, p_run_ats, p_delays, p_max_attempts,
      p_metas, p_limits, p_keys, p_on_conflict, p_until_claim, p_periods, p_caps, p_expires_ats,
      p_expires_s, p_guarded) a;
  exception when sqlstate 'CH001' then
    get stacked diagnostics v_detail = pg_exception_detail;
    return query
    select split_part(v_detail, ' ', 1)::uuid, split_part(v_detail, ' ', 2)::uuid,
      split_part(v_detail, ' ', 3);
  end;
end
$$
