-- Deletes finished jobs by conditions, as {schema}.matching_jobs finds unfinished ones: reads up to
-- p_read rows by id, and deletes up to p_limit of them, or with p_remove false only counts them.
-- Returns how many match, how many were deleted, and the id after which to go on; null once there
-- are no more. The rows of one id, of a job that was pushed again after it had finished, belong to
-- the same step, however many they are.
-- p_since, p_until: when the jobs finished; the partitions of other times are not read.
-- Index: finished_jobs_id, in each partition of that time. Locks: the rows that it deletes, by id.
-- Safe to repeat. The plan is pinned; the condition on id is written so that only its index serves
-- it, as in {schema}.pruner_step.
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
  with read as (
    select f.id, f.finished_at, f.arguments, f.errors,
      case when p_where is null then 0 else coalesce(pg_column_size(f.arguments), 0) end
        + case when p_error is null then 0 else coalesce(pg_column_size(f.errors), 0) end as bytes, (
        f.state = any (p_states)
        and (p_queue is null or f.queue = p_queue)
        and (p_func is null or f.func like p_func)) is true as meant
    from {schema}.finished_jobs f
    where f.id > p_after and f.finished_at >= p_since and f.finished_at <= p_until
    order by f.id
    fetch first (p_read) rows with ties
  ), looked_at as materialized (
    select r.id, r.finished_at, case
        when coalesce(sum(r.bytes) filter (where r.meant) over earlier, 0) < 8388608 then (
          r.meant
          and (p_where is null or r.arguments @> p_where)
          and (p_error is null or position(lower(p_error) in lower(concat_ws(
            ': ', r.errors #>> '{-1,types,0}', r.errors #>> '{-1,message}'))) > 0)) is true
      end as matches
    from read r
    window earlier as (order by r.id groups between unbounded preceding and 1 preceding)
  ), counted as materialized (
    select l.*, count(*) filter (where l.matches) over earlier as before
    from looked_at l
    window earlier as (order by l.id groups between unbounded preceding and 1 preceding)
  ), taken as materialized (
    select c.id, c.finished_at, c.matches from counted c
    where c.before < p_limit and c.matches is not null
  ), gone as (
    delete from {schema}.finished_jobs f
    using taken t
    where p_remove and t.matches and f.id = any (array[t.id]) and f.finished_at = t.finished_at
    returning f.id)
  select count(*) filter (where t.matches), (select count(*) from gone), case
      when (select count(*) < p_read and count(*) = count(c.matches)
          and coalesce(max(c.before), 0) < p_limit from counted c) then null
      else (select l.id from taken l order by l.id desc limit 1)
    end
  into matched, removed, reached
  from taken t;
end
$$
