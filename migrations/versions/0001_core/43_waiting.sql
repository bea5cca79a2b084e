-- Those of some queues that have pending jobs, or jobs that were set aside, unless they are paused.
-- Index: jobs_pending and jobs_set_aside, by a loose scan over the queues that have entries, at most
-- twice as many as were given; if there are more, once for each given queue. So an idle worker costs
-- the same with 10 and with 300 queues. No locks. Safe to repeat.
create function {schema}.waiting(p_queues text[]) returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
{pinned_plan}
set enable_sort = off
as $$
declare
  v_found text[] := '{}';
  v_queue text := '';
begin
  for v_step in 0 .. 2 * cardinality(p_queues) loop
    select least(
      (select j.queue from {schema}.jobs j
       where j.state = 0 and j.queue > v_queue order by j.queue limit 1),
      (select j.queue from {schema}.jobs j
       where j.state = 3 and j.meta ? 'unknown_function' and j.queue > v_queue
       order by j.queue limit 1))
    into v_queue;
    exit when v_queue is null;
    if v_queue = any (p_queues) then
      v_found := v_found || v_queue;
    end if;
  end loop;
  if v_queue is not null then
    v_found := array(
      select o.name from unnest(p_queues) as o (name)
      where exists (select from {schema}.jobs j where j.state = 0 and j.queue = o.name)
        or exists (
          select from {schema}.jobs j
          where j.state = 3 and j.meta ? 'unknown_function' and j.queue = o.name));
  end if;
  return array(
    select f.name from unnest(v_found) as f (name)
    where not exists (
      select from {schema}.queues q
      where q.name = f.name and q.paused_at is not null
        and (q.resume_at is null or q.resume_at > clock_timestamp())));
end
$$
