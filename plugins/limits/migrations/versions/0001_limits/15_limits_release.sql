-- Makes up to p_limit held jobs of a queue pending again, at their old positions, and notifies
-- workers: those of p_ids; null: any. Returns how many. For a queue whose rules have changed.
-- Index: jobs_limits_held. Locks: rows of jobs, skipping locked ones. Safe to repeat.
create function {schema}.limits_release(p_queue text, p_limit int, p_ids uuid[]) returns int
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
declare
  v_released int;
begin
  with held as materialized (
    select j.ctid as tid from {schema}.jobs j
    where j.state = 3 and j.meta ? 'limits' and not j.meta ? 'hold' and j.queue = p_queue
      and j.meta #>> '{limits,partition}' is not null and (p_ids is null or j.id = any (p_ids))
    limit p_limit for update skip locked)
  update {schema}.jobs j
  set state = 0, meta = nullif(j.meta #- '{limits,partition}', '{"limits": {}}')
  where j.ctid = any (array(select held.tid from held));
  get diagnostics v_released = row_count;
  if v_released > 0 then
    perform pg_notify({schema}.channel(), 'r:' || p_queue);
  end if;
  return v_released;
end
$$
