-- Returns up to p_limit functions of jobs in a queue that were set aside for workers that know them.
-- Index: jobs_set_aside, by a loose scan. No locks. Safe to repeat.
create function {schema}.set_aside(p_queue text, p_limit int) returns setof text
language plpgsql rows 10
set search_path = pg_catalog, pg_temp
{pinned_plan}
set enable_sort = off
as $$
begin
  return query
  with recursive found (func) as (
    (select j.func from {schema}.jobs j
     where j.state = 3 and j.meta ? 'unknown_function' and j.queue = p_queue
     order by j.func limit 1)
    union all
    select (select j.func from {schema}.jobs j
            where j.state = 3 and j.meta ? 'unknown_function' and j.queue = p_queue
              and j.func > found.func
            order by j.func limit 1)
    from found where found.func is not null)
  select found.func from found where found.func is not null limit p_limit;
end
$$
