-- Returns p_blocked, from limits_judge, without the groups whose slots were meant for jobs that do not
-- start after all, as there is no room for them; p_keys are the keys of these jobs. Nothing would report
-- these slots as free.
-- No locks. Safe to repeat.
create function {schema}.limits_unblock(
  s {schema}.limits_queues, p_keys text[], p_blocked text[]
) returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
as $$
begin
  -- With one key, only the job itself, or those behind it in its partition, would be blocked.
  if cardinality(s.bys) = 1 or p_keys = '{}' or array_remove(p_blocked, null) = '{}' then
    return p_blocked;
  end if;
  return array(
    select case when u.blocked not in (
        select r.no || ':' || {schema}.limits_group(k.key, r.by_no, cardinality(s.bys))
        from (select distinct key from unnest(p_keys) as n (key)) k
        cross join unnest(s.kinds, s.by_nos) with ordinality as r (kind, by_no, no)
        where r.by_no > 0 and r.kind in ('concurrency', 'sequential')) then u.blocked end
    from unnest(p_blocked) with ordinality as u (blocked, no) order by u.no);
end
$$
