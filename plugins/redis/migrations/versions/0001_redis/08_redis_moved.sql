-- Deletes jobs that Redis now has, together with their moves, and the periods of keys for which the
-- next push is to replace the job in Redis. Returns the jobs that have changed
-- since they were first taken, each with whether it is gone: such a job was cancelled, or claimed
-- by a worker of an older version, or rescheduled or given other arguments by a push that replaces,
-- whether or not it is pending again by now. The moves of these jobs remain, and so do jobs that a
-- transaction has locked, whose outcome is not known yet: they are returned with null.
-- p_moves: the pos of each move. A job that has been moved back since, and is being moved anew, is left
-- alone.
-- Index: the primary keys. Locks: the jobs, skipping locked ones, then the periods, then the moves.
-- Safe to repeat.
create function {schema}.redis_moved(p_ids uuid[], p_moves bigint[])
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
    from {schema}.jobs j
    where j.id = any (p_ids) and j.state in (0, -1)
      and exists (
        select from {schema}.redis_moves m
        where m.id = j.id and m.pos = any (p_moves) and m.seen = j.xmin::text)
    for update of j skip locked
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
  select m.id, case when j.state in (0, -1) and j.xmin::text = m.seen then null else j.id is null end
  from {schema}.redis_moves m
  left join {schema}.jobs j on j.id = m.id
  where m.id = any (p_ids) and m.pos = any (p_moves);
end
$$
