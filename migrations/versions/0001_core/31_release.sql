-- Releases held jobs that wait for it, in their order, each with a new position, and wakes the workers
-- of their queues: the jobs ids, or up to `most` jobs whose meta has `key` as its `hold`. Returns their
-- ids. A job whose time is ahead becomes scheduled. Jobs that are held for another reason, by the
-- rules of their queue or for want of a worker that knows their function, stay held.
-- Call it with named parameters, in any transaction; later versions may add parameters.
-- Index: the primary key, or jobs_on_hold. Locks: rows of jobs by id or by position, skipping locked
-- ones. Safe to repeat.
create function {schema}.release(
  key text default null, ids uuid[] default null, most int default 1000
) returns setof uuid
language plpgsql rows 1000
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
declare
  v_held tid[];
  v_released uuid[];
  v_queues text[];
begin
  if (key is null) = (ids is null) then
    raise exception 'release: give a key or ids' using errcode = 'invalid_parameter_value';
  end if;
  if key is null then
    v_held := array(
      select j.ctid from {schema}.jobs j
      where j.id = any (ids) and j.state in (3, -1) and j.meta ? 'hold'
      order by j.id for update skip locked);
  else
    v_held := array(
      select j.ctid from {schema}.jobs j
      where j.state = 3 and j.meta ? 'hold' and left(j.meta ->> 'hold', 200) = left(key, 200)
        and j.meta ->> 'hold' = key
      order by j.pos limit most for update skip locked);
  end if;
  with ordered as materialized (
    select o.tid, nextval('{schema}.positions') as pos
    from (
      select j.ctid as tid from {schema}.jobs j where j.ctid = any (v_held) order by j.pos) o
  ), released as (
    update {schema}.jobs j
    set state = {schema}.admit(j.run_at, j.meta - 'hold'), pos = o.pos, meta = j.meta - 'hold'
    from ordered o
    where j.ctid = o.tid
    returning j.id, j.queue, j.state)
  select array_agg(r.id), array_agg(r.queue) filter (where r.state = 0) into v_released, v_queues
  from released r;
  -- Unguarded: the caller's transaction may stay open, and would keep the guard until then.
  perform {schema}.wake(q.name, false, q.jobs)
  from (select u.name, count(*) as jobs from unnest(v_queues) as u (name) group by u.name) q;
  return query select unnest(v_released);
end
$$
