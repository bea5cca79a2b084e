-- Makes up to p_limit jobs of a queue with rules pending again that were set aside for workers that
-- know their functions. Returns how many. Index: jobs_set_aside, once for each function. Locks: rows
-- of jobs in that order, skipping locked ones. Safe to repeat.
create function {schema}.limits_restore(p_queue text, p_funcs text[], p_limit int) returns int
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
set enable_sort = off
as $$
declare
  v_restored int;
begin
  with found as materialized (
    select l.tid from unnest(p_funcs) as wanted (func)
    cross join lateral (
      select j.ctid as tid from {schema}.jobs j
      where j.state = 3 and j.meta ? 'unknown_function' and j.queue = p_queue
        and j.func = wanted.func
      order by j.priority desc, j.pos limit p_limit for update skip locked) l
    limit p_limit)
  update {schema}.jobs j
  set state = 0, meta = (j.meta - 'unknown_function') #- '{limits,partition}'
  where j.ctid = any (array(select tid from found));
  get diagnostics v_restored = row_count;
  return v_restored;
end
$$
