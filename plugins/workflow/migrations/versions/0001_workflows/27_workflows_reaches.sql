-- Returns whether one of the first steps is, or directly or indirectly releases, one of the second
-- steps.
-- Index: the primary key of workflows_steps. No locks.
create function {schema}.workflows_reaches(p_id uuid, p_these text[], p_those text[]) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with recursive behind (name) as (
    select u.name collate "C" from unnest(p_these) as u (name)
    union
    select n.name
    from behind b
    cross join lateral (
      select o.next || o.joins as next from {schema}.workflows_steps o
      where o.workflow_id = p_id and o.name = b.name
      offset 0) as s
    cross join unnest(s.next) as n (name)
    where n.name <> '')
  select exists (select from behind b where b.name = any (p_those))
$$
