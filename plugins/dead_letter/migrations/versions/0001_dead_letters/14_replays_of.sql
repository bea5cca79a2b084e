-- Returns the replay of a failed job, the replay of that, and so on, at most 100, each with its number:
-- for plugins that track what became of a job. The last one may not have ended.
-- Index: the primary key of dead_letters, once for each. No locks. Safe to repeat.
create function {schema}.replays_of(p_job uuid) returns table (id uuid, depth int)
language plpgsql stable strict rows 1
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
#variable_conflict use_column
begin
  return query
  with recursive replays (id, depth) as (
    select d.replayed_as, 1
    from {schema}.dead_letters d
    where d.id = p_job and d.replayed_as is not null
    union all
    select d.replayed_as, p.depth + 1
    from replays p
    join {schema}.dead_letters d on d.id = p.id
    where p.depth < 100 and d.replayed_as is not null)
  select r.id, r.depth from replays r;
end
$$
