-- Finds unfinished jobs by conditions, by id from the one after p_after up to p_last. Reads up to
-- p_read of them, and returns the ids of up to p_limit that match, and the id after which to go on;
-- null once there are no more. A null condition is not checked; p_func is a pattern for LIKE, p_where
-- an object of arguments, p_error a part of the last failure, in any case. After 8 MiB of arguments
-- and errors that it compared with these, as stored, it looks at no further jobs.
-- Index: the primary key of jobs. No locks. Safe to repeat. The plan is pinned, as in {schema}.claim.
create function {schema}.matching_jobs(
  p_after uuid, p_last uuid, p_states smallint[], p_queue text, p_func text,
  p_since timestamptz, p_until timestamptz, p_where jsonb, p_error text, p_read int, p_limit int,
  out ids uuid[], out reached uuid
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
begin
  with read as (
    select j.id, j.arguments, j.errors,
      case when p_where is null then 0 else coalesce(pg_column_size(j.arguments), 0) end
        + case when p_error is null then 0 else coalesce(pg_column_size(j.errors), 0) end as bytes, (
        j.state = any (p_states)
        and (p_queue is null or j.queue = p_queue)
        and (p_func is null or j.func like p_func)
        and (p_since is null or j.pushed_at >= p_since)
        and (p_until is null or j.pushed_at <= p_until)) is true as meant
    from {schema}.jobs j
    where j.id > p_after and j.id <= p_last
    order by j.id limit p_read
  ), looked_at as materialized (
    select r.id, case
        when coalesce(sum(r.bytes) filter (where r.meant) over earlier, 0) < 8388608 then (
          r.meant
          and (p_where is null or r.arguments @> p_where)
          and (p_error is null or position(lower(p_error) in lower(concat_ws(
            ': ', r.errors #>> '{-1,types,0}', r.errors #>> '{-1,message}'))) > 0)) is true
      end as matches
    from read r
    window earlier as (order by r.id rows between unbounded preceding and 1 preceding)
  ), counted as materialized (
    select l.id, l.matches, count(*) filter (where l.matches) over (order by l.id) as nth
    from looked_at l
  ), taken as materialized (
    select c.id, c.matches from counted c where c.nth <= p_limit and c.matches is not null)
  select coalesce(array_agg(t.id) filter (where t.matches), '{}'), case
      when (select count(*) < p_read and count(*) = count(c.matches)
          and coalesce(max(c.nth), 0) <= p_limit from counted c) then null
      else (select l.id from taken l order by l.id desc limit 1)
    end
  into ids, reached
  from taken t;
end
$$
