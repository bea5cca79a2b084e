-- Deletes finished jobs by conditions, as {schema}.matching_jobs finds unfinished ones: reads up to
-- p_read rows by id, and deletes up to p_limit of them, or with p_remove false only counts them.
-- Returns how many match, how many were deleted, and the id after which to go on; null once there
-- are no more. The rows of one id, of a job that was pushed again after it had finished, belong to
-- the same step, however many they are.
-- p_since, p_until: when the jobs finished; the partitions of other times are not read.
-- Index: finished_jobs_id, in each partition of that time. Locks: the rows that it deletes, by id.
-- Safe to repeat. The plan is pinned; the condition on id is written so that only its index serves
-- it, as in {schema}.pruner_step. A window frame with "exclude group" would take the square of p_read.
create function {schema}.delete_finished(
  p_after uuid, p_states smallint[], p_queue text, p_func text, p_since timestamptz,
  p_until timestamptz, p_where jsonb, p_error text, p_read int, p_limit int, p_remove boolean,
  out matched int, out removed int, out reached uuid
)
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
set enable_sort = off
as $$
begin
  with looked_at as materialized (
    select f.id, f.finished_at, (
        f.state = any (p_states)
        and (p_queue is null or f.queue = p_queue)
        and (p_func is null or f.func like p_func)
        and (p_where is null or f.arguments @> p_where)
        and (p_error is null or position(lower(p_error) in lower(concat_ws(
          ': ', f.errors #>> '{-1,types,0}', f.errors #>> '{-1,message}'))) > 0)) is true as matches
    from {schema}.finished_jobs f
    where f.id > p_after and f.finished_at >= p_since and f.finished_at <= p_until
    order by f.id
    fetch first (p_read) rows with ties
  ), counted as materialized (
    select l.*, count(*) filter (where l.matches) over (order by l.id)
        - count(*) filter (where l.matches) over (partition by l.id) as before
    from looked_at l
  ), taken as materialized (
    select c.id, c.finished_at, c.matches from counted c where c.before < p_limit
  ), gone as (
    delete from {schema}.finished_jobs f
    using taken t
    where p_remove and t.matches and f.id = any (array[t.id]) and f.finished_at = t.finished_at
    returning f.id)
  select count(*) filter (where t.matches), (select count(*) from gone), case
      when (select count(*) < p_read and coalesce(max(c.before), 0) < p_limit from counted c) then null
      else (select l.id from taken l order by l.id desc limit 1)
    end
  into matched, removed, reached
  from taken t;
end
$$
