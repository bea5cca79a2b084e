-- Cancels up to p_limit expired jobs, earliest first, as {schema}.cancel does, with the reason as their
-- last error; none after 8 MiB of arguments and meta, as stored, since {schema}.promote waits for it.
-- Returns how many. Index: jobs_expiring, then as for {schema}.cancel. Locks: rows of jobs by time,
-- skipping locked ones. Safe to repeat. The plan is pinned, as in {schema}.claim.
create function {schema}.expire(p_limit int) returns int
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
set enable_sort = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_ids uuid[];
begin
  with late as materialized (
    select l.tid, sum(l.bytes) over (rows unbounded preceding) - l.bytes as bytes_before
    from (
      select j.ctid as tid, coalesce(pg_column_size(j.arguments), 0)
        + coalesce(pg_column_size(j.meta), 0) as bytes
      from {schema}.jobs j
      where j.expires_at <= v_now and j.state <> 1 and j.attempt = 0 and j.crashes = 0
      order by j.expires_at limit p_limit for update skip locked) l
  ), told as (
    update {schema}.jobs j
    set errors = {schema}.with_failure(j.errors, jsonb_build_object(
      'types', jsonb_build_array('chancy.Expired'),
      'message', 'expired: it had not started by '
        || to_char(j.expires_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))::text, 0, null, null, null)
    where j.ctid = any (array(select late.tid from late where late.bytes_before < 8388608))
    returning j.id)
  select array_agg(told.id) into v_ids from told;
  if v_ids is null then
    return 0;
  end if;
  return (select count(*) from {schema}.cancel(v_ids) c where c.what = 'cancelled');
end
$$
