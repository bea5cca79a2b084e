-- Deletes jobs that Redis now has, together with their moves, and the periods of keys for which the
-- next push is to replace the job in Redis. Returns the moves that remain, each with whether its job
-- is gone if the job has changed since it was first taken: it was cancelled, or claimed by a worker of
-- an older version, or rescheduled or given other arguments by a push that replaces, whether or not it
-- is pending again by now. It returns null if a transaction has locked the job, so that its outcome is
-- not known yet, or if another worker has taken the move over.
-- p_leases: the leases under which the moves were taken. A move under another lease is left alone.
-- Index: the primary keys. Locks: the jobs and their moves, skipping locked ones, then the periods.
-- Safe to repeat.
create function {schema}.redis_moved(p_ids uuid[], p_leases uuid[])
returns table (id uuid, gone boolean)
language plpgsql rows 10
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
#variable_conflict use_column
declare
  v_over uuid[];
begin
  with free as materialized (
    select j.ctid as tid
    from {schema}.redis_moves m
    join {schema}.jobs j on j.id = m.id
    where m.id = any (p_ids) and m.lease = any (p_leases)
      and j.state in (0, -1) and m.seen = j.xmin::text
    for update skip locked
  ), moved as (
    delete from {schema}.jobs j
    where j.ctid = any (array(select free.tid from free))
    returning j.id, j.unique_key, j.unique_replaces
  ), forgotten as (
    delete from {schema}.unique_periods u using moved
    where moved.unique_replaces and u.unique_key = moved.unique_key and u.job_id = moved.id)
  select array_agg(moved.id) into v_over from moved;
  delete from {schema}.redis_moves m where m.id = any (v_over);
  return query
  select m.id, case
    when m.lease = any (p_leases) and (j.id is null or j.state not in (0, -1) or j.xmin::text <> m.seen)
    then j.id is null
    end
  from {schema}.redis_moves m
  left join {schema}.jobs j on j.id = m.id
  where m.id = any (p_ids);
end
$$
