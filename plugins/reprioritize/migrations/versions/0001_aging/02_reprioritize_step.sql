-- One step through a lane, after p_after, in order of position: reads p_limit pending jobs, and
-- raises each to the priority that the rules assign to its age. Each rule consists of the functions
-- that it matches (as LIKE), the seconds of a period, the gain of a job for each full period since
-- it became due, over its priority before any raise, and the upper limit. The highest result
-- applies. Returns the number of jobs it read, the last position, and the number of raised jobs; if
-- there are any, and p_tell is set, it notifies the workers to claim from the front.
-- The meta of a job stores its original and its raised priority, so that a repeated raise has no
-- further effect. A priority that differs from the stored raised one was set elsewhere, and counts
-- as the original. The function accepts any value of meta.
-- Index: jobs_pending, then the rows by ctid. Locks: the rows that it raises, in that order,
-- skipping locked ones. Safe to repeat. The plan is pinned, as in {schema}.claim.
create function {schema}.reprioritize_step(
  p_queue text, p_priority smallint, p_after bigint, p_funcs text[], p_periods_s float8[],
  p_gains int[], p_tops int[], p_limit int, p_tell boolean,
  out seen int, out reached bigint, out raised int
)
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
set enable_sort = off
set lock_timeout = '100ms'
as $$
declare
  v_now float8 := extract(epoch from clock_timestamp());
begin
  with looked_at as materialized (
    select l.tid, l.pos, l.origin, (
        select max(least(
          r.top, l.origin + r.gain * floor(greatest(v_now - l.due, 0) / r.period_s)))
        from unnest(p_funcs, p_periods_s, p_gains, p_tops) as r (func, period_s, gain, top)
        where l.func like r.func) as target
    from (
      select j.ctid as tid, j.pos, j.func,
        extract(epoch from greatest(j.run_at, j.pushed_at))::float8 as due,
        case
          when j.meta #> '{reprioritize,to}' = to_jsonb(j.priority)
            and jsonb_typeof(j.meta #> '{reprioritize,from}') = 'number'
          then least(greatest((j.meta #>> '{reprioritize,from}')::numeric, -100), j.priority)
          else j.priority
        end::float8 as origin
      from {schema}.jobs j
      where j.state = 0 and j.queue = p_queue and j.priority = p_priority and j.pos > p_after
      order by j.pos limit p_limit) l
  ), locked as materialized (
    select j.ctid as tid, l.origin, l.target
    from looked_at l
    join {schema}.jobs j on j.ctid = l.tid
    where l.target > p_priority
      and j.state in (0, -1) and j.queue = p_queue and j.priority = p_priority
    for update of j skip locked
  ), lifted as (
    update {schema}.jobs j
    set priority = l.target::smallint,
      meta = {schema}.with_meta(j.meta, jsonb_build_object('reprioritize', jsonb_build_object(
        'from', l.origin::int, 'to', l.target::int))::text)
    from locked l
    where j.ctid = l.tid
    returning j.id)
  select count(*), max(l.pos), (select count(*) from lifted)
  into seen, reached, raised
  from looked_at l;
  if raised > 0 and p_tell then
    perform pg_notify({schema}.channel(), 'r:' || p_queue);
  end if;
end
$$
